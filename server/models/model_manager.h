// SPDX-License-Identifier: Apache-2.0
// ModelManager: loads models, when the server starts and while it runs, and unloads them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/histogram.h"
#include "server/core/mutex.h"
#include "server/core/threads.h"
#include "server/models/model_loader.h"
#include "server/models/model_options.h"
#include "server/models/model_registry.h"
#include "server/models/model_repository.h"
#include "server/sessions/adapter_table.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// LoadRefusal: why a model or an adapter is not loaded or unloaded.

struct LoadRefusal {
  enum class Kind {
    kNotFound,          // no such model, version or adapter on the disk, or none is loaded
    kUnusable,          // its files are not those of one that can run here, or its name is taken
    kOutOfModelMemory,  // what models may take is taken
    kTooManyLoads,      // as many as may wait do
    kStopping,          // the server is shutting down
    kOutOfMemory,       // the machine's
    kFailed,            // a fault of ours
  };
  Kind kind = Kind::kFailed;
  std::string model;
  std::string text = {};  // for the caller; empty for kStopping and kOutOfMemory, which say enough
  std::string adapter = {};  // of the model; empty: it is about the model itself
};

// After calls were ended, for their last messages to go out.
inline constexpr std::chrono::milliseconds kFlushTime{1000};

// While the server runs it loads one model at a time on a thread of its own, so that no other call
// waits for a load; a load that fails leaves everything as it was. A model that is unloaded is
// drained: it takes no new request at once, its idle sessions are closed, and when the last of its
// calls has ended, or the drain timeout has passed and they are ended, its memory is released. LoRA
// adapters of a model are drained likewise, but their sessions may continue meanwhile.
//
// With options.loads_on_request() a call that names a model which is not in memory waits until it
// is loaded. Where --model-memory has no room for it, models that no call uses go, the longest
// unused first; so do those that are unused for idle_unload_ms. A model stays while it has sessions
// that live in memory alone.
//
// Thread-safe.
class ModelManager {
 public:
  // All but the options are borrowed and outlive the object. Throws std::system_error when the
  // system has no more threads.
  ModelManager(const ModelOptions& options, ModelRegistry& registry, SessionManager& store,
               const Clock& clock, PrefixCache* prefixes = nullptr);
  ~ModelManager();  // stop()

  // Loads what the options say that the server starts with, on the caller's thread. Throws
  // ModelError naming the model and what is wrong, or that the memory for models would not do.
  void load_at_start();
  // Version 1 of `name`, loaded elsewhere: its memory is not counted.
  void serve(const std::string& name, std::shared_ptr<const Transformer> transformer);

  // Receives whether a name takes requests: of what is ready at once, and whenever it may have
  // changed, one call at a time.
  using OnReadiness = std::function<void(const std::string& name, bool ready)>;
  void tell_readiness(OnReadiness on_readiness) EXCLUDES(telling_);

  // Called exactly once, by any thread, with either.
  using OnLoaded = std::function<void(const std::optional<LoadRefusal>&, const SharedModel& model)>;
  // For a request that names a model which is not ready: called when it is, or cannot be, on a
  // thread that loads nothing, so that no later load waits for what a request does with its model.
  // One load answers all that wait for it. After a load that failed it is refused for
  // kFailureTime. `waiter`: for stop_waiting(). REQUIRES: loads_on_request().
  void wait_for(const std::string& name, std::optional<std::int64_t> version, const void* waiter,
                OnLoaded done) EXCLUDES(mutex_);
  // The waiter needs no answer any more; it may be on its way. A load that no request waits for
  // does not begin.
  void stop_waiting(const std::string& name, std::optional<std::int64_t> version,
                    const void* waiter) EXCLUDES(mutex_);
  // Whether a request for it may wait.
  bool loads_on_request(const std::string& name, std::optional<std::int64_t> version) const;
  bool loads_on_request() const { return options_.loads_on_request(); }
  // What a request may name, sorted: what is ready, and what is loaded on request.
  std::vector<std::string> names() const;
  static constexpr std::chrono::seconds kFailureTime{10};
  // Unloads what no call has used for idle_unload_ms; the server calls it periodically.
  void unload_idle() EXCLUDES(mutex_);
  // Called with a model that goes because it is unused, to store the states of its sessions. It may
  // wait. To be set before the first request.
  void when_unused(std::function<void(const Transformer&)> store_states) {
    store_states_ = std::move(store_states);
  }

  // A version of the repository, beside the others; without one the newest, in place of all others.
  // What it replaces serves until it is ready, and is drained then. REQUIRES: is_model_name(name),
  // here and below.
  void load(const std::string& name, std::optional<std::int64_t> version, OnLoaded done)
      EXCLUDES(mutex_);
  // Called exactly once, by any thread.
  using OnUnloaded = std::function<void(const std::optional<LoadRefusal>&)>;
  // One version or all of a name; answers when they are drained and gone.
  void unload(const std::string& name, std::optional<std::int64_t> version, OnUnloaded done)
      EXCLUDES(mutex_);

  // Called exactly once, by any thread, with either.
  using OnAdapterLoaded =
      std::function<void(const std::optional<LoadRefusal>&, const SharedAdapter& adapter)>;
  // A LoRA adapter of a model that is served, from its directory or where the options say. One of
  // that name has to be unloaded first. It goes with the model, however that goes.
  void load_adapter(const SharedModel& model, const std::string& name, OnAdapterLoaded done)
      EXCLUDES(mutex_);
  // No request finds it from now on; answers when nothing uses it any more, or the drain timeout
  // has passed and what used it is ended: its requests end, and its sessions are closed.
  void unload_adapter(const SharedModel& model, const std::string& name, OnUnloaded done)
      EXCLUDES(mutex_);

  // Refuses what has not started, waits for a load that has, ends every drain now. Idempotent.
  void stop() EXCLUDES(mutex_);

  // What the registry knows, and what else is in the repository, by name and version.
  std::vector<ModelRegistry::Entry> index() const;
  const ModelMemory& memory() const { return *memory_; }

  // What became of loads and models so far.
  struct Stats {
    std::uint64_t loaded = 0, failed = 0, refused = 0;  // refused: for want of memory
    std::uint64_t unloaded_idle = 0, unloaded_for_memory = 0;
    HistogramSnapshot load_seconds;  // of those that were loaded
    std::size_t waiting = 0;         // requests that wait for a load
  };
  Stats stats() const EXCLUDES(mutex_);

 private:
  using Key = std::pair<std::string, std::optional<std::int64_t>>;
  // A job of the loading thread, which calls either `run` or `refuse`.
  struct Load {
    std::string model;
    std::function<void()> run;
    std::function<void(const LoadRefusal&)> refuse;
  };
  // Answers an unload when the last of its models is gone.
  class Unload;
  struct Drain {
    const ServedModel* model = nullptr;  // the registry's until forget()
    TimePoint give_up;                   // of real time
    std::shared_ptr<Unload> unload;      // null: another took its place
  };

  // Of an adapter that was retired.
  struct AdapterDrain {
    std::weak_ptr<const ServedModel> model;  // a drain keeps no model
    std::string name;
    TimePoint give_up;  // of real time
    bool ended = false;
    OnUnloaded done;
  };

  void ask(Load load) EXCLUDES(mutex_);
  // The versions of a name that can be loaded, from the lowest to the highest.
  std::vector<ModelSource> sources(const std::string& name) const;
  // Answers those who wait, and keeps a failure for those who come next.
  void answer_waiting(const Key& key, const std::optional<LoadRefusal>& refused,
                      const SharedModel& model) EXCLUDES(mutex_);
  // Whether a request waits for it; if not, the load is forgotten.
  bool is_awaited(const Key& key) EXCLUDES(mutex_);
  // Unloads models that no call uses until so many bytes are free, or none where they would not do.
  void make_room(std::size_t bytes) EXCLUDES(mutex_);
  // Whether it can be loaded again, and no session is lost with it.
  bool may_unload(const ModelRegistry::Unused& model) const;
  // Takes it out of the registry and stores the states of its sessions. Null: a call came.
  SharedModel retire(const ModelRegistry::Unused& model, const std::string& why);
  void run_loads() EXCLUDES(mutex_);
  void run_drains() EXCLUDES(mutex_);
  std::optional<LoadRefusal> load_now(const std::string& name, std::optional<std::int64_t> version,
                                      SharedModel& loaded);
  std::optional<LoadRefusal> load_from(const ModelSource& source, bool replace_all,
                                       SharedModel& loaded);
  // Takes retired models on.
  void drain(const std::vector<SharedModel>& models, const std::shared_ptr<Unload>& unload)
      EXCLUDES(mutex_);
  // A step of a drain. Returns whether it is over.
  bool advance(Drain& drain, bool at_once);
  bool advance(AdapterDrain& drain, bool at_once);
  void tell_readiness_of(const std::string& name) EXCLUDES(telling_);

  const ModelOptions options_;
  ModelRegistry& registry_;
  SessionManager& store_;
  const std::shared_ptr<ModelMemory> memory_;
  const ModelLoader loader_;
  const ModelRepository repository_;
  const Clock& clock_;
  std::function<void(const Transformer&)> store_states_;

  mutable Mutex mutex_;
  CondVar load_asked_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::deque<Load> loads_ GUARDED_BY(mutex_);
  struct Waiter {
    const void* waiter = nullptr;
    OnLoaded done;
  };
  std::map<Key, std::vector<Waiter>> waiting_ GUARDED_BY(mutex_);  // of loads that were asked for
  std::size_t num_waiting_ GUARDED_BY(mutex_) = 0;
  // Loads that failed, until the time.
  std::map<Key, std::pair<LoadRefusal, TimePoint>> failures_ GUARDED_BY(mutex_);
  // Since when a model is seen unused, and the use that was its last then.
  struct Seen {
    std::uint64_t last_use = 0;
    TimePoint at;
  };
  std::map<Key, Seen> seen_unused_ GUARDED_BY(mutex_);
  // New ones; the draining thread has the others.
  std::vector<Drain> drains_ GUARDED_BY(mutex_);
  std::vector<AdapterDrain> adapter_drains_ GUARDED_BY(mutex_);
  Mutex telling_;
  OnReadiness on_readiness_ GUARDED_BY(telling_);
  // Written by load_at_start(), then by the thread that loads.
  Histogram<11> load_seconds_{{0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0}};
  std::atomic<std::uint64_t> failed_{0}, refused_{0}, unloaded_idle_{0}, unloaded_for_memory_{0};
  std::thread loading_, draining_;
  WorkThreads answers_;  // to requests that waited; last: they use the rest
};

}  // namespace lintel
