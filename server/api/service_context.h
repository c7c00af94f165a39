// SPDX-License-Identifier: Apache-2.0
// ServiceContext: references that the services share; the server owns the objects and outlives
// them.
#pragma once

#include <atomic>
#include <chrono>
#include <span>

#include "server/api/streaming_options.h"
#include "server/chat/template/traits.h"
#include "server/core/clock.h"
#include "server/engine/prefix_cache.h"
#include "server/models/model_aliases.h"
#include "server/models/model_manager.h"
#include "server/models/model_registry.h"
#include "server/rpc/call_scope.h"
#include "server/sessions/named_states.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/persistence/stored_chat_states.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// ServerHealth: liveness and readiness for every probe.

// /readyz, /healthz, gRPC health and the Open Inference Protocol's ServerReady, ServerLive and
// ModelReady, over gRPC and HTTP, all ask this one. Thread-safe; asks nothing of a disk.
class ServerHealth {
 public:
  // broken_timeout: how long a server stays alive whose session store is broken; 0: for ever.
  // `calls` and `clock` outlive the object.
  ServerHealth(const ActiveCalls& calls, const Clock& clock,
               std::chrono::milliseconds broken_timeout)
      : calls_(calls), clock_(clock), broken_timeout_(broken_timeout) {}

  // A write to the session store failed: it is broken until the process restarts.
  void note_broken_store() {
    TimePoint unbroken = kNotBroken;
    broken_since_.compare_exchange_strong(unbroken, clock_.now());
  }

  // True if new calls are taken: the server does not drain, and its session store is not broken.
  bool is_ready() const { return !calls_.closed() && broken_since_.load() == kNotBroken; }
  // True if the process is of use. A broken store can only be opened by a new process, so this one
  // is to be ended after the timeout. A drain is no reason.
  bool is_alive() const {
    const TimePoint since = broken_since_.load();
    return since == kNotBroken || broken_timeout_.count() == 0 ||
           clock_.now() - since < broken_timeout_;
  }

 private:
  static constexpr TimePoint kNotBroken = TimePoint::max();

  const ActiveCalls& calls_;
  const Clock& clock_;
  const std::chrono::milliseconds broken_timeout_;
  std::atomic<TimePoint> broken_since_{kNotBroken};
};

struct ServiceContext {
  const ModelRegistry& models;
  ModelManager& manager;
  SessionManager& sessions;
  NamedStates& states;
  PrefixCache& prefixes;
  ActiveCalls& calls;
  const CallPolicy& gate;
  const Clock& clock;
  const StreamingOptions& streaming;
  const ServerHealth& health;
  PersistentSessions* persistent_sessions = nullptr;  // null: nothing outlives the process
  StoredChatStates* chat_states = nullptr;            // null with persistent_sessions
  bool refuses_unknown_members = false;               // of chats and responses
  std::span<const ModelAlias> aliases = {};           // they outlive the services
  LateSystem late_system = LateSystem::kUser;
};

}  // namespace lintel
