// SPDX-License-Identifier: Apache-2.0
// Metrics: the server's metrics in Prometheus' text format.
#pragma once

#include <prometheus/collectable.h>

#include <chrono>
#include <vector>

#include "server/core/request_memory.h"
#include "server/engine/prefix_cache.h"
#include "server/http/transport/http_message.h"
#include "server/models/model_manager.h"
#include "server/models/model_registry.h"
#include "server/rpc/call_scope.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/persistence/stored_chat_states.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// Reads counters that others keep, when it is asked: nothing of it is on a call's way. Names begin
// with lintel_ (what any process has: process_), units are seconds and bytes, and no label holds an
// id. Thread-safe.
class Metrics final : public prometheus::Collectable {
 public:
  // All are borrowed and outlive the object. `durable`: null without a session store;
  // `recovery_time`: what opening that took; `http`: null where HTTP is not served.
  Metrics(const ModelRegistry& models, const ModelManager& manager, const SessionManager& store,
          const PrefixCache& prefixes, const ActiveCalls& calls, const RequestCounters& requests,
          const PersistentSessions* durable = nullptr,
          const StoredChatStates* chat_states = nullptr,
          std::chrono::duration<double> recovery_time = {}, const HttpCounters* http = nullptr,
          const RequestMemory* request_memory = nullptr);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const ModelRegistry& models_;
  const ModelManager& manager_;
  const SessionManager& store_;
  const PrefixCache& prefixes_;
  const ActiveCalls& calls_;
  const RequestCounters& requests_;
  const PersistentSessions* const durable_;
  const StoredChatStates* const chat_states_;
  const std::chrono::duration<double> recovery_time_;
  const HttpCounters* const http_;
  const RequestMemory* const request_memory_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace lintel
