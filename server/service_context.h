// ServiceContext: what the services share. Borrowed; the server owns all of it and outlives them.
#pragma once

#include "server/active_calls.h"
#include "server/call_scope.h"
#include "server/clock.h"
#include "server/model_manager.h"
#include "server/model_registry.h"
#include "server/options.h"
#include "server/session_store.h"

namespace lintel {

// What gRPC lets the server send in one message.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;

struct ServiceContext {
  const ModelRegistry& models;
  ModelManager& manager;
  SessionStore& store;
  ActiveCalls& calls;
  const CallGate& gate;
  const Clock& clock;
  const ServerOptions& options;
};

}  // namespace lintel
