// ModelMemory: the memory that models and adapters may take, and who holds how much of it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "server/core/mutex.h"

namespace lintel {

// Thread-safe. Memory is counted from before a model is loaded until after it is freed. Shared with
// the reservations, which may outlive its owner.
class ModelMemory : public std::enable_shared_from_this<ModelMemory> {
 public:
  // What one model holds. Move-only; released when destroyed.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation() {
      if (memory_ != nullptr) memory_->give_back(bytes_);
    }

    // REQUIRES: bytes is no more than it has.
    void shrink_to(std::size_t bytes) {
      memory_->give_back(bytes_ - bytes);
      bytes_ = bytes;
    }

   private:
    friend class ModelMemory;
    Reservation(std::shared_ptr<ModelMemory> memory, std::size_t bytes)
        : memory_(std::move(memory)), bytes_(bytes) {}
    std::shared_ptr<ModelMemory> memory_;
    std::size_t bytes_ = 0;
  };

  // 0: no bound; what is held is counted all the same. REQUIRES: made by std::make_shared.
  explicit ModelMemory(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Nothing when it does not fit.
  std::optional<Reservation> reserve(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (limit_bytes_ != 0 && bytes > free_bytes_locked()) return std::nullopt;
    used_bytes_ += bytes;
    return Reservation(shared_from_this(), bytes);
  }

  std::size_t limit_bytes() const { return limit_bytes_; }
  std::size_t used_bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return used_bytes_;
  }
  // REQUIRES: there is a bound.
  std::size_t free_bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return free_bytes_locked();
  }

 private:
  void give_back(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    used_bytes_ -= bytes;
  }
  std::size_t free_bytes_locked() const REQUIRES(mutex_) {
    return used_bytes_ < limit_bytes_ ? limit_bytes_ - used_bytes_ : 0;
  }

  const std::size_t limit_bytes_;
  mutable Mutex mutex_;
  std::size_t used_bytes_ GUARDED_BY(mutex_) = 0;
};

// The same model or adapter, counted for as long as a call, a session or the registry holds this
// pointer.
template <typename T>
std::shared_ptr<const T> counted(std::shared_ptr<const T> weights,
                                 ModelMemory::Reservation reservation) {
  auto held = std::make_shared<ModelMemory::Reservation>(std::move(reservation));
  const T* const bare = weights.get();
  // First freed, then released.
  return {bare, [weights = std::move(weights), held = std::move(held)](const T*) mutable {
            weights.reset();
            held.reset();
          }};
}

}  // namespace lintel
