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

// AdapterSource: the place of a LoRA adapter on the disk.

// A directory with adapter_config.json and adapter_model.safetensors, as PEFT writes them.
struct AdapterSource {
  std::string name;
  std::filesystem::path directory;
};

// DIR/adapters/NAME/ of the model in DIR, by name. Entries with names that no model may have are
// skipped. Empty if there is no such directory, or `model_directory` is empty.
std::vector<AdapterSource> adapters_in(const std::filesystem::path& model_directory);

// Self-check of batch invariance (promise 1): a row has the same bits in any batch on this machine.

// Steps sequences alone and together, in batches of several sizes up to `max_rows` (at most 256;
// for a large model 8 rows of 4 sequences), a token at a time and several, and compares the outputs
// bit by bit. The team, if there is one, shares the steps of batches. Takes as long as some hundred
// rows.
bool rows_are_independent(const Transformer& model, int max_rows, StepThreadPool* team = nullptr);

// The same for another step function than Transformer::step. A requested stop ends it: true if no
// differing bits were found until then.
using StepFunction =
    std::function<MatrixView<const float>(std::span<const BatchRow> rows, Workspace& workspace)>;
bool rows_are_independent(const Transformer& model, int max_rows, const StepFunction& step,
                          StepThreadPool* team = nullptr, const std::stop_token& stop = {});

// Warnings for the operator, which are logged, too: one if `passes()`, a self-check, is false or
// throws, e.g. for lack of memory.
std::vector<std::string> warnings_of_check(const std::string& name,
                                           const std::function<bool()>& passes,
                                           const std::stop_token& stop);

// Calls measure() while the scheduler is idle. measure() may end early, with any result, when
// `ends` is true: a request has come, and the measurement is repeated. Returns nothing if none
// succeeded for `longest`, if a stop was requested, or if the scheduler drains.
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

// ModelMemory: the memory that models and adapters may take, and their reservations of it.

// Thread-safe. Memory is counted from before a model is loaded until after it is freed. Shared with
// the reservations, which may outlive its owner.
class ModelMemory : public std::enable_shared_from_this<ModelMemory> {
 public:
  // The memory held by one model. Move-only; released when destroyed.
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

  // limit_bytes: 0: no bound; reservations are counted all the same. REQUIRES: made by
  // std::make_shared.
  explicit ModelMemory(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Reserves `bytes`; nothing if they do not fit even after make_room.
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
  // Sets the callback with which reserve() frees the bytes that it needs when these are not free.
  using MakeRoom = std::function<void(std::size_t bytes)>;
  void make_room_with(MakeRoom make_room) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    make_room_ = std::move(make_room);
  }

  std::size_t limit_bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return limit_bytes_;
  }
  // Sets the bound; what is reserved already stays. 0: no bound.
  void set_limit(std::size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    limit_bytes_ = bytes;
  }
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

  mutable Mutex mutex_;
  std::size_t limit_bytes_ GUARDED_BY(mutex_);
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
  // Frees the weights before it releases the reservation.
  return {bare, [weights = std::move(weights), held = std::move(held)](const T*) mutable {
            weights.reset();
            held.reset();
          }};
}

// Thrown when the memory for models has no room for one.
class OutOfModelMemory : public ModelError {
  using ModelError::ModelError;
};

// plan_to_load() with the options' choices. Throws as it does, and ModelError for an unreadable
// text to compare weight types on.
LoadPlan plan_as_asked(const ModelFiles& files, const ModelOptions& options);

// Loads every model, when the server starts and while it runs. Const and thread-safe.
class ModelLoader {
 public:
  static constexpr std::int64_t kLargeParameters = 50'000'000;

  // Options and clock are borrowed and outlive the object; the clock and `prefixes`, the cache of
  // prompts (null: none), outlive the models, too. large_parameters: models with more are served
  // before they are checked and measured.
  ModelLoader(const ModelOptions& options, std::shared_ptr<ModelMemory> memory, const Clock& clock,
              PrefixCache* prefixes = nullptr, std::int64_t large_parameters = kLargeParameters)
      : options_(options),
        memory_(std::move(memory)),
        clock_(clock),
        prefixes_(prefixes),
        large_parameters_(large_parameters) {}

  // Opens the directory's files once, measures and admits them, loads what was measured, and logs a
  // description; the scheduler's workers begin at once. Fingerprint, numerics, self-check and the
  // cost of a step of a large model follow after it has returned (ServedModel). Its adapters are
  // loaded with it. on_progress: receives the progress, for people, whenever that changes, on any
  // thread. Throws ModelError naming file, key or tensor, and OutOfModelMemory.
  using OnProgress = std::function<void(const std::string& progress)>;
  std::shared_ptr<ServedModel> load(const ModelSource& source,
                                    OnProgress on_progress = nullptr) const;

  // Loads one adapter of a model, admitted by its files' headers and ready when it is returned.
  // Throws ModelError naming adapter, file and the fault, and OutOfModelMemory. REQUIRES: its name
  // is free.
  SharedAdapter load_adapter(const ServedModel& model, const AdapterSource& source) const;
  // The adapter's place: in the model's directory, or as given in the options. Throws ModelError if
  // it is in both.
  std::optional<AdapterSource> find_adapter(const ServedModel& model,
                                            const std::string& name) const;

  // Serves a model that was loaded elsewhere, with the adapters of the options: no memory is
  // counted for it, and its rows are not compared.
  std::shared_ptr<ServedModel> serve(const std::string& name, std::int64_t version,
                                     std::shared_ptr<const Transformer> transformer) const;

 private:
  // All adapters of the model. Throws ModelError if a name occurs twice.
  std::vector<AdapterSource> adapter_sources(const ServedModel& model) const;
  // Reserves memory for a model. Throws as refuse_memory() if there is too little.
  ModelMemory::Reservation admit(const std::string& name, const ModelSize& size) const;
  // Throws OutOfModelMemory, or ModelError if it would not fit into all of the memory for models.
  [[noreturn]] void refuse_memory(const std::string& subject, std::size_t peak_bytes,
                                  std::size_t resident_bytes) const;
  int batch_rows(const Transformer& model) const;
  int most_prompt_rows(const Transformer& model) const;
  // measures: the cost of a step is measured; otherwise it is assumed.
  std::shared_ptr<ServedModel> serve(const ModelSource& source,
                                     std::shared_ptr<const Transformer> transformer,
                                     std::vector<std::string> warnings, int batch_rows,
                                     std::string type_reason, bool measures) const;

  const ModelOptions& options_;
  const std::shared_ptr<ModelMemory> memory_;
  const Clock& clock_;
  PrefixCache* const prefixes_;
  const std::int64_t large_parameters_;
};

}  // namespace lintel
