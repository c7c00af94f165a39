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
    kOutOfModelMemory,  // the memory for models is in use
    kTooManyLoads,      // the queue of loads is full
    kStopping,          // the server is shutting down
    kOutOfMemory,       // the machine's
    kFailed,            // a fault of ours
  };
  Kind kind = Kind::kFailed;
  std::string model;
  std::string text = {};  // for the caller; empty for kStopping and kOutOfMemory, which say enough
  std::string adapter = {};  // of the model; empty: it is about the model itself
};

// The time for the last messages of calls that were ended to be sent.
inline constexpr std::chrono::milliseconds kFlushTime{1000};

// While the server runs it loads one model at a time on a thread of its own, so that no other call
// waits for a load; a load that fails leaves everything as it was. A model that is unloaded is
// drained: it takes no new request at once, its idle sessions are closed, and when the last of its
// calls has ended, or the drain timeout has passed and they are ended, its memory is released. LoRA
// adapters of a model are drained likewise, but their sessions may continue meanwhile.
//
// With options.loads_on_request() a call that names a model which is not in memory waits until it
// is loaded. If --model-memory has no room for it, models that no call uses are unloaded, the
// longest unused first; so are those that are unused for idle_unload_ms. A model stays while it has
// sessions that live in memory alone.
//
// Thread-safe.
class ModelManager {
 public:
  // All but the options are borrowed and outlive the object. Throws std::system_error when the
  // system has no more threads.
  ModelManager(const ModelOptions& options, ModelRegistry& registry, SessionManager& store,
               const Clock& clock, PrefixCache* prefixes = nullptr);
  ~ModelManager();  // stop()

  // Loads the models that the options name for the start, on the caller's thread. Throws ModelError
  // naming the model and the fault, or that the memory for models does not suffice.
  void load_at_start();
  // Sets the bound of the memory for models, 0: none. What is loaded stays.
  void set_memory(std::size_t bytes) { memory_->set_limit(bytes); }
  // Checks that a session of each loaded model fits into the memory of sessions, and logs how many
  // do. Throws ModelError. REQUIRES: that memory is set.
  void check_sessions() const;
  // Serves version 1 of `name`, loaded elsewhere: its memory is not counted.
  void serve(const std::string& name, std::shared_ptr<const Transformer> transformer);

  // Receives the readiness of a name: of ready models at once, and whenever it may have changed,
  // one call at a time.
  using OnReadiness = std::function<void(const std::string& name, bool ready)>;
  void tell_readiness(OnReadiness on_readiness) EXCLUDES(telling_);

  // Called exactly once, by any thread, with either.
  using OnLoaded = std::function<void(const std::optional<LoadRefusal>&, const SharedModel& model)>;
  // Waits for a model that a request names and that is not ready: `done` is called when it is, or
  // cannot be, on a thread that loads nothing, so that no later load waits for what a request does
  // with its model. One load answers all that wait for it. After a load that failed it is refused
  // for kFailureTime. `waiter`: for stop_waiting(). REQUIRES: loads_on_request().
  void wait_for(const std::string& name, std::optional<std::int64_t> version, const void* waiter,
                OnLoaded done) EXCLUDES(mutex_);
  // Cancels wait_for() of the waiter, whose answer may be on its way already. A load that no
  // request waits for does not begin.
  void stop_waiting(const std::string& name, std::optional<std::int64_t> version,
                    const void* waiter) EXCLUDES(mutex_);
  // True if a request for the model may wait for its load.
  bool loads_on_request(const std::string& name, std::optional<std::int64_t> version) const;
  bool loads_on_request() const { return options_.loads_on_request(); }
  // The names that requests may use, sorted: ready models, and those that are loaded on request.
  std::vector<std::string> names() const;
  // True if the files of a model, which need not be loaded, are those of one that chats: it has a
  // tokenizer and a chat template that is served. Of several versions the newest decides. Reads the
  // files when they have changed.
  bool can_chat(const std::string& name) const;
  static constexpr std::chrono::seconds kFailureTime{10};
  // Unloads what no call has used for idle_unload_ms; the server calls it periodically.
  void unload_idle() EXCLUDES(mutex_);
  // Sets the function that stores the states of the sessions of a model before it is unloaded as
  // unused. It may wait. To be set before the first request.
  void when_unused(std::function<void(const Transformer&)> store_states) {
    store_states_ = std::move(store_states);
  }

  // Loads a version of the repository, in addition to the others; without one the newest, in place
  // of all others, which serve until it is ready and are drained then. REQUIRES:
  // is_model_name(name), here and below.
  void load(const std::string& name, std::optional<std::int64_t> version, OnLoaded done)
      EXCLUDES(mutex_);
  // Called exactly once, by any thread.
  using OnUnloaded = std::function<void(const std::optional<LoadRefusal>&)>;
  // Unloads one version of a name, or all; answers when they are drained and gone.
  void unload(const std::string& name, std::optional<std::int64_t> version, OnUnloaded done)
      EXCLUDES(mutex_);

  // Called exactly once, by any thread, with either.
  using OnAdapterLoaded =
      std::function<void(const std::optional<LoadRefusal>&, const SharedAdapter& adapter)>;
  // Loads a LoRA adapter of a model that is served, from its directory or as given in the options.
  // One of that name has to be unloaded first. It is unloaded with the model in any case.
  void load_adapter(const SharedModel& model, const std::string& name, OnAdapterLoaded done)
      EXCLUDES(mutex_);
  // Retires an adapter, which no request finds from now on; answers when nothing uses it any more,
  // or the drain timeout has passed and its users are ended: requests end, and sessions are closed.
  void unload_adapter(const SharedModel& model, const std::string& name, OnUnloaded done)
      EXCLUDES(mutex_);

  // Refuses loads that have not started, waits for a running one, ends every drain now. Idempotent.
  void stop() EXCLUDES(mutex_);

  // The registry's entries and the other models of the repository, by name and version.
  std::vector<ModelRegistry::Entry> index() const;
  const ModelMemory& memory() const { return *memory_; }

  // Counts of loads and unloads so far.
  struct Stats {
    std::uint64_t loaded = 0, failed = 0, refused = 0;  // refused: for want of memory
    std::uint64_t unloaded_idle = 0, unloaded_for_memory = 0;
    HistogramSnapshot load_seconds;  // of successful loads
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

  // The drain of an adapter that was retired.
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
  // Answers the waiting requests, and keeps a failure for later ones.
  void answer_waiting(const Key& key, const std::optional<LoadRefusal>& refused,
                      const SharedModel& model) EXCLUDES(mutex_);
  // True if a request waits for the load; if none does, the load is forgotten.
  bool is_awaited(const Key& key) EXCLUDES(mutex_);
  // Unloads models that no call uses until so many bytes are free, or none if that cannot suffice.
  void make_room(std::size_t bytes) EXCLUDES(mutex_);
  // The same of one model.
  void check_sessions_of(const ServedModel& model) const;
  // True if the model can be loaded again and no session is lost with it.
  bool may_unload(const ModelRegistry::Unused& model) const;
  // Takes it out of the registry and stores the states of its sessions. Null: a call uses it again.
  SharedModel retire(const ModelRegistry::Unused& model, const std::string& why);
  void run_loads() EXCLUDES(mutex_);
  void run_drains() EXCLUDES(mutex_);
  std::optional<LoadRefusal> load_now(const std::string& name, std::optional<std::int64_t> version,
                                      SharedModel& loaded);
  std::optional<LoadRefusal> load_from(const ModelSource& source, bool replace_all,
                                       SharedModel& loaded);
  // Begins the drains of retired models.
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
  // Failed loads, and the times until which they are refused.
  std::map<Key, std::pair<LoadRefusal, TimePoint>> failures_ GUARDED_BY(mutex_);
  // The last use of an unused model, and the time since which it is seen unused.
  struct Seen {
    std::uint64_t last_use = 0;
    TimePoint at;
  };
  std::map<Key, Seen> seen_unused_ GUARDED_BY(mutex_);
  // New drains; the draining thread has the others.
  std::vector<Drain> drains_ GUARDED_BY(mutex_);
  std::vector<AdapterDrain> adapter_drains_ GUARDED_BY(mutex_);
  Mutex telling_;
  OnReadiness on_readiness_ GUARDED_BY(telling_);
  // Written by load_at_start(), then by the thread that loads.
  Histogram<11> load_seconds_{{0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0}};
  std::atomic<std::uint64_t> failed_{0}, refused_{0}, unloaded_idle_{0}, unloaded_for_memory_{0};
  std::thread loading_, draining_;
  WorkThreads answers_;  // to waiting requests; last: uses the members above
};

}  // namespace lintel
