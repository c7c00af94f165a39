// ServiceContext: references that the services share; the server owns the objects and outlives
// them.
#pragma once

#include "server/api/server_health.h"
#include "server/api/streaming_options.h"
#include "server/core/clock.h"
#include "server/grpc/transport/active_calls.h"
#include "server/grpc/transport/call_scope.h"
#include "server/models/model_manager.h"
#include "server/models/model_registry.h"
#include "server/sessions/named_states.h"
#include "server/sessions/persistence/durable_sessions.h"
#include "server/sessions/session_store.h"

namespace lintel {

struct ServiceContext {
  const ModelRegistry& models;
  ModelManager& manager;
  SessionStore& store;
  NamedStates& states;
  ActiveCalls& calls;
  const CallGate& gate;
  const Clock& clock;
  const StreamingOptions& streaming;
  const ServerHealth& health;
  DurableSessions* durable = nullptr;  // null: nothing outlives the process
};

}  // namespace lintel
