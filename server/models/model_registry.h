// SPDX-License-Identifier: Apache-2.0
// ModelRegistry: the models by name and version, and the state each is in.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/numerics_fingerprint.h"
#include "model/transformer.h"
#include "server/chat/template/chat_model.h"
#include "server/core/mutex.h"
#include "server/core/notification.h"
#include "server/engine/scheduler.h"
#include "server/models/model_options.h"
#include "server/sessions/adapter_table.h"

namespace lintel {

// ServedModel: one version of a model, loaded, with its scheduler.

// Constant after construction, but for the scheduler and the adapters, which are thread-safe, and
// the flag.
//
// Shared by the registry and by every call that runs on it, which releases it when it is over: a
// model that only the registry holds has nothing running. The registry is the last to release it
// before the scheduler is stopped, so that no worker destroys its own scheduler.
struct ServedModel {
  ~ServedModel() { unloads.request_stop(); }

  std::string name;
  std::int64_t version = 1;
  std::shared_ptr<const Transformer> transformer;
  std::filesystem::path directory;  // its files' place; empty: loaded elsewhere
  // LoRA adapters, which come and go while it is served: thread-safe. Before the scheduler, whose
  // requests use them.
  const std::unique_ptr<AdapterTable> adapters = std::make_unique<AdapterTable>();
  std::unique_ptr<Scheduler> scheduler;
  // The numerics of this machine with this model. For a large model they are computed while the
  // first requests are served: waits for them.
  const NumericsFingerprint& numerics() const {
    static const NumericsFingerprint kNone;
    return numerics_later.valid() ? numerics_later.get() : kNone;
  }
  bool knows_numerics() const {  // without waiting
    return !numerics_later.valid() ||
           numerics_later.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void set_numerics(NumericsFingerprint known) {
    std::promise<NumericsFingerprint> promise;
    promise.set_value(std::move(known));
    numerics_later = promise.get_future().share();
  }
  std::shared_future<NumericsFingerprint> numerics_later;
  // Warnings for the operator: those of loading, and of the self-check once it has ended. Does not
  // wait.
  std::vector<std::string> all_warnings() const {
    std::vector<std::string> all = warnings;
    if (!later_warnings.valid() ||
        later_warnings.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return all;
    }
    all.insert(all.end(), later_warnings.get().begin(), later_warnings.get().end());
    return all;
  }
  std::vector<std::string> warnings;  // of loading
  std::shared_future<std::vector<std::string>> later_warnings;
  // Measures the cost of a step of a large model: Scheduler::set_step_cost(). Its destructor waits;
  // after the scheduler, which is used meanwhile.
  std::future<void> cost_later;
  std::stop_source unloads;  // ends the computations above

  std::string weight_type_reason;         // why its weight type; empty: it was given, or is f32
  RequestLimits limits;                   // max_samples no more than max_batch_rows
  std::shared_ptr<const ChatModel> chat;  // null: the model has none
  std::size_t memory_bytes = 0;           // counted by --model-memory, without its adapters
  std::size_t worker_bytes = 0;           // of the buffers of all workers
  // True once it was unloaded or replaced: calls that still run may be ended for that.
  mutable std::atomic<bool> retired{false};
  // The number of calls that use it, counted by ModelRegistry::use().
  mutable std::atomic<int> uses{0};
  mutable std::atomic<std::uint64_t> last_use{0};  // the later, the higher
};

using SharedModel = std::shared_ptr<const ServedModel>;

// The states of one load of a version. A version may be reloaded while the model that an earlier
// load made is ready, or drains.
//
//   kLoading --> kReady --> kDraining --> kEnding --> kGone
//      |                                                ^
//      +------------------------------------------------+
enum class LoadState {
  kLoading,
  kReady,     // takes requests
  kDraining,  // takes no requests; running ones continue
  kEnding,    // its scheduler has stopped, and the last messages of its calls go out
  kGone,      // it failed, or nothing needs it any more
};
// True if `to` may be the next state after `from`.
bool may_follow(LoadState from, LoadState to);

// The state of a version, of all its loads.
enum class ModelState {
  kLoading,      // for the first time; a model that is reloaded stays ready
  kReady,        // takes requests
  kUnloading,    // takes no requests; running ones continue for a while
  kUnavailable,  // failed to load, was unloaded, or never asked for
};
const char* to_string(ModelState state);  // "LOADING"

// Thread-safe; a call asks it once, not for every token. The ModelManager changes it.
class ModelRegistry {
 public:
  // The version, or the highest one that is ready. Null when there is none. An empty name is not
  // resolved here.
  SharedModel find(std::string_view name, std::optional<std::int64_t> version = std::nullopt) const
      EXCLUDES(mutex_);
  // The model of this name and with these weights, if it is ready: the sessions of the transformer
  // can continue.
  SharedModel find(std::string_view name, const Transformer* transformer) const EXCLUDES(mutex_);
  // The same for a call that runs on the model: it is in use until the last copy of the pointer is
  // gone.
  SharedModel use(std::string_view name, std::optional<std::int64_t> version = std::nullopt) const
      EXCLUDES(mutex_);
  SharedModel use(std::string_view name, const Transformer* transformer) const EXCLUDES(mutex_);
  // The model, by its highest version, when exactly one name is ready, else null.
  SharedModel only() const EXCLUDES(mutex_);
  // The ready models, by name and version.
  std::vector<SharedModel> ready() const EXCLUDES(mutex_);

  struct Entry {
    std::string name;
    std::int64_t version = 0;
    ModelState state = ModelState::kUnavailable;
    // Why it is kUnavailable; if kReady, why its reload failed; if kLoading, the progress.
    std::string reason;
    bool failed = false;  // its last load did, for its files; `reason` says why
  };
  // Everything that is or was loaded, or failed to be, by name and version.
  std::vector<Entry> index() const EXCLUDES(mutex_);
  // The best state of any version; kUnavailable also for a name that is not known.
  ModelState state(std::string_view name) const EXCLUDES(mutex_);

  // Sums over all versions of a name, including those unloaded before: counters never decrease.
  struct Totals {
    std::string name;
    Scheduler::Stats stats;
    SchedulerTimings timings;
    std::size_t weight_bytes = 0;
    int workers = 0;
    int max_batch_rows = 0;  // of a worker, the most of any version
  };
  std::vector<Totals> totals() const EXCLUDES(mutex_);

  void set_loading(const std::string& name, std::int64_t version) EXCLUDES(mutex_);
  // Sets the progress of its load, for people: "40 % of 2.1 GB read".
  void set_progress(const std::string& name, std::int64_t version, const std::string& progress)
      EXCLUDES(mutex_);
  // failed: its files are at fault, not a lack of memory.
  void set_failed(const std::string& name, std::int64_t version, const std::string& reason,
                  bool failed = true) EXCLUDES(mutex_);
  struct Added {
    SharedModel model;                  // as find() gives it
    std::vector<SharedModel> replaced;  // retired
  };
  // Makes a model ready. Retires the one with its name and version, and with `replace_all` the
  // other versions too.
  Added add(SharedModel model, bool replace_all = false) EXCLUDES(mutex_);
  // Retires one version, or all. Returns them, in use for as long as the caller has them; the
  // registry keeps them until forget().
  std::vector<SharedModel> retire(std::string_view name, std::optional<std::int64_t> version)
      EXCLUDES(mutex_);
  // A ready model that no call uses.
  struct Unused {
    std::string name;
    std::int64_t version = 0;
    std::uint64_t last_use = 0;
    std::size_t memory_bytes = 0;  // with its adapters
    std::shared_ptr<const Transformer> transformer;
  };
  // Ready models that no call uses, the longest unused first.
  std::vector<Unused> unused() const EXCLUDES(mutex_);
  // Retires the model if no call has used it since. Null: a call has.
  SharedModel retire(const Unused& unused) EXCLUDES(mutex_);
  // True if no call holds the retired model any more.
  bool is_unused(const ServedModel* model) EXCLUDES(mutex_);
  // Rung whenever a retired model is unused from then on.
  const std::shared_ptr<Notification>& unused_bell() const { return unused_bell_; }
  // Marks a retired model as ending: its scheduler is stopped now. Returns false if it was before.
  bool set_ending(const ServedModel* model) EXCLUDES(mutex_);
  // Drops a retired model. REQUIRES: its scheduler is stopped.
  void forget(const ServedModel* model) EXCLUDES(mutex_);
  // All models in memory, including retired ones.
  std::vector<SharedModel> all() const EXCLUDES(mutex_);

 private:
  using Key = std::pair<std::string, std::int64_t>;
  struct Load {
    LoadState state = LoadState::kLoading;
    std::string progress;  // of kLoading
    SharedModel model;     // null while it is loaded
    SharedModel handle;    // copied for calls; null unless the model is ready
    std::shared_ptr<const std::atomic<bool>> is_used;  // false once the last of these is gone
  };
  struct Slot {
    std::vector<Load> loads;  // none is kGone, one at most is kReady
    std::string reason;
    bool failed = false;

    SharedModel ready() const;
  };

  static void set_state(Load& load, LoadState state);
  static ModelState state_of(const Slot& slot);
  static void retire(Slot& slot, const char* reason, std::vector<SharedModel>& retired);
  SharedModel highest(std::string_view name) const REQUIRES(mutex_);
  SharedModel find_locked(std::string_view name, std::optional<std::int64_t> version) const
      REQUIRES(mutex_);
  SharedModel find_locked(std::string_view name, const Transformer* transformer) const
      REQUIRES(mutex_);
  // The load that made the model. Null once it is forgotten.
  Load* find_load(const ServedModel* model) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<Key, Slot> slots_ GUARDED_BY(mutex_);
  std::map<std::string, Totals> forgotten_ GUARDED_BY(mutex_);  // sums of former versions
  const std::shared_ptr<Notification> unused_bell_ = std::make_shared<Notification>();
};

}  // namespace lintel
