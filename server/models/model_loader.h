// SPDX-License-Identifier: Apache-2.0
// ModelLoader: from a model directory to a model that can be served.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/fastest_type.h"
#include "model/model_files.h"
#include "model/numerics_fingerprint.h"
#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/models/model_options.h"
#include "server/models/model_registry.h"
#include "server/models/model_repository.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// Where the LoRA adapters of a model lie on the disk.

// A directory with adapter_config.json and adapter_model.safetensors, as PEFT writes them.
struct AdapterSource {
  std::string name;
  std::filesystem::path directory;
};

// DIR/adapters/NAME/ of the model in DIR, by name. Entries whose names could name no model are
// passed over. Empty where there is no such directory, or `model_directory` is empty.
std::vector<AdapterSource> adapters_in(const std::filesystem::path& model_directory);

// Self-check of batch invariance (promise 1): the same bits in any batch on this machine?

// Steps sequences alone and together, in batches of several sizes up to `max_rows` (at most 256;
// of a large model 8 rows of 4 sequences), a token at a time and several, and compares the outputs
// bit by bit. The team, if there is one, shares the steps of batches. Takes as long as some hundred
// rows.
bool rows_are_independent(const Transformer& model, int max_rows, StepThreadPool* team = nullptr);

// The same of a step that is not the model's own: Transformer::step. A requested stop ends it:
// true, if no other bits were found until then.
using StepFunction =
    std::function<MatrixView<const float>(std::span<const BatchRow> rows, Workspace& workspace)>;
bool rows_are_independent(const Transformer& model, int max_rows, const StepFunction& step,
                          StepThreadPool* team = nullptr, const std::stop_token& stop = {});

// Warnings for the operator, which the log has, too: one where `passes()`, a self-check, is false
// or throws, e.g. for want of memory.
std::vector<std::string> warnings_of_check(const std::string& name,
                                           const std::function<bool()>& passes,
                                           const std::stop_token& stop);

// measure() at a moment when the scheduler is idle. It may end early, with any result, when `ends`
// is true: a request has come, and the measurement is repeated. Nothing if none succeeded for
// `longest`, if a stop was requested, or if the scheduler drains.
using Measure = std::function<StepCost(const std::function<bool()>& ends)>;
std::optional<StepCost> measure_when_idle(const Scheduler& scheduler, const Measure& measure,
                                          std::chrono::steady_clock::duration longest,
                                          const std::stop_token& stop);

// Computes the fingerprint, sets the promise, and returns the numerics, which depend on it. Runs
// while the first requests are served, as hashing large files takes as long as loading them. For
// files that were written to since they were opened, the fingerprint is a random one that no other
// model has; the log says so. A requested stop ends it; both are empty then.
NumericsFingerprint identify(const std::string& name, const ModelFiles& files,
                             std::promise<std::string> fingerprint, const Transformer& transformer,
                             const std::stop_token& stop);

// ModelMemory: the memory that models and adapters may take, and who holds how much of it.

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

  // Nothing when it does not fit, also after make_room.
  std::optional<Reservation> reserve(std::size_t bytes) EXCLUDES(mutex_) {
    std::optional<Reservation> reserved = reserve_free(bytes);
    if (reserved) return reserved;
    MakeRoom make_room;
    {
      MutexLock lock(mutex_);
      make_room = make_room_;
    }
    if (make_room == nullptr) return std::nullopt;
    make_room(bytes);
    return reserve_free(bytes);
  }
  // From now on reserve() calls it with the bytes that it needs where these are not free, to free
  // them.
  using MakeRoom = std::function<void(std::size_t bytes)>;
  void make_room_with(MakeRoom make_room) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    make_room_ = std::move(make_room);
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
  std::optional<Reservation> reserve_free(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (limit_bytes_ != 0 && bytes > free_bytes_locked()) return std::nullopt;
    used_bytes_ += bytes;
    return Reservation(shared_from_this(), bytes);
  }
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
  MakeRoom make_room_ GUARDED_BY(mutex_);
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

// The memory for models has no room for one.
class OutOfModelMemory : public ModelError {
  using ModelError::ModelError;
};

// plan_to_load() of a model as the options have it. Throws what that does, and ModelError for a
// text to compare weight types on that cannot be read.
LoadPlan plan_as_asked(const ModelFiles& files, const ModelOptions& options);

// Every model comes this way, when the server starts and while it runs. Const and thread-safe.
class ModelLoader {
 public:
  static constexpr std::int64_t kLargeParameters = 50'000'000;

  // Options and clock are borrowed and outlive the object; the clock the models, too, as does what
  // their prompts leave (null: nothing). `sessions`: what a session of each model has to fit into.
  // large_parameters: a model of more is served before it is checked and measured.
  ModelLoader(const ModelOptions& options, const SessionManager::Options& sessions,
              std::shared_ptr<ModelMemory> memory, const Clock& clock,
              PrefixCache* prefixes = nullptr, std::int64_t large_parameters = kLargeParameters)
      : options_(options),
        sessions_(sessions),
        memory_(std::move(memory)),
        clock_(clock),
        prefixes_(prefixes),
        large_parameters_(large_parameters) {}

  // Opens the directory's files once, measures and admits them, loads what was measured, and logs
  // what it is; its scheduler's workers begin at once. Fingerprint, numerics, self-check and
  // the cost of a step of a large model follow after it has returned (ServedModel). Its adapters
  // come with it. on_progress: receives how far it is, for people, whenever that changes, on any
  // thread. Throws ModelError naming file, key or tensor, and OutOfModelMemory.
  using OnProgress = std::function<void(const std::string& progress)>;
  std::shared_ptr<ServedModel> load(const ModelSource& source,
                                    OnProgress on_progress = nullptr) const;

  // One adapter of a model, admitted by its files' headers, which is ready when it is returned.
  // Throws ModelError naming adapter, file and what is wrong, and OutOfModelMemory. REQUIRES: its
  // name is free.
  SharedAdapter load_adapter(const ServedModel& model, const AdapterSource& source) const;
  // Where it lies: in the model's directory, or where the options say. Throws ModelError where it
  // is in both.
  std::optional<AdapterSource> find_adapter(const ServedModel& model,
                                            const std::string& name) const;

  // A model that was loaded elsewhere, with the adapters of the options: no memory is counted for
  // it, and its rows are not compared.
  std::shared_ptr<ServedModel> serve(const std::string& name, std::int64_t version,
                                     std::shared_ptr<const Transformer> transformer) const;

 private:
  // Throws ModelError where a name is there twice.
  std::vector<AdapterSource> adapter_sources(const ServedModel& model) const;
  // Throws as refuse_memory() where there is too little.
  ModelMemory::Reservation admit(const std::string& name, const ModelSize& size) const;
  // Throws OutOfModelMemory; ModelError where it would not fit into all of the memory for models.
  [[noreturn]] void refuse_memory(const std::string& subject, std::size_t peak_bytes,
                                  std::size_t resident_bytes) const;
  int batch_rows(const Transformer& model) const;
  int most_prompt_rows(const Transformer& model) const;
  // measures: what a step costs; else it is assumed.
  std::shared_ptr<ServedModel> serve(const ModelSource& source,
                                     std::shared_ptr<const Transformer> transformer,
                                     std::vector<std::string> warnings, int batch_rows,
                                     std::string type_reason, bool measures) const;

  const ModelOptions& options_;
  const SessionManager::Options& sessions_;
  const std::shared_ptr<ModelMemory> memory_;
  const Clock& clock_;
  PrefixCache* const prefixes_;
  const std::int64_t large_parameters_;
};

}  // namespace lintel
