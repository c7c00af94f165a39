// ModelBudget: how much memory models may take, and who holds how much of it.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "model/network/transformer.h"
#include "server/base/mutex.h"

namespace lintel {

// Thread-safe. Memory is counted from before a model is loaded until after it is freed.
class ModelBudget {
 public:
  // 0: no bound; what is held is counted all the same.
  explicit ModelBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  bool reserve(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (limit_bytes_ != 0 && bytes > free_bytes_locked()) return false;
    used_bytes_ += bytes;
    return true;
  }
  // Without asking: for what is loaded already.
  void take(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    used_bytes_ += bytes;
  }
  void give_back(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    used_bytes_ -= bytes;
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
  std::size_t free_bytes_locked() const REQUIRES(mutex_) {
    return used_bytes_ < limit_bytes_ ? limit_bytes_ - used_bytes_ : 0;
  }

  const std::size_t limit_bytes_;
  mutable Mutex mutex_;
  std::size_t used_bytes_ GUARDED_BY(mutex_) = 0;
};

// What one model holds of a budget. Move-only; gives it back when destroyed.
class ModelReservation {
 public:
  ModelReservation() = default;
  // REQUIRES: the bytes are counted in the budget.
  ModelReservation(std::shared_ptr<ModelBudget> budget, std::size_t bytes)
      : budget_(std::move(budget)), bytes_(bytes) {}
  ModelReservation(ModelReservation&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  ModelReservation& operator=(ModelReservation&&) = delete;
  ~ModelReservation() {
    if (budget_ != nullptr) budget_->give_back(bytes_);
  }

  // REQUIRES: bytes is no more than it has.
  void shrink_to(std::size_t bytes) {
    budget_->give_back(bytes_ - bytes);
    bytes_ = bytes;
  }

 private:
  std::shared_ptr<ModelBudget> budget_;
  std::size_t bytes_ = 0;
};

// The same transformer, counted for as long as somebody holds this pointer: calls, sessions,
// whoever.
inline std::shared_ptr<const Transformer> counted(std::shared_ptr<const Transformer> transformer,
                                                  ModelReservation reservation) {
  auto held = std::make_shared<ModelReservation>(std::move(reservation));
  const Transformer* const bare = transformer.get();
  // First freed, then given back.
  return {bare, [transformer = std::move(transformer),
                 held = std::move(held)](const Transformer*) mutable {
            transformer.reset();
            held.reset();
          }};
}

}  // namespace lintel
