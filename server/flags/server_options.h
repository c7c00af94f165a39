// ServerOptions: everything an operator can choose, grouped, with its unit in its name.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "server/auth/quotas.h"
#include "server/auth/security_options.h"
#include "server/base/listen_address.h"
#include "server/log/logging.h"
#include "server/models/model_options.h"
#include "server/port/connection_settings.h"
#include "server/sessions/session_store.h"
#include "server/stream/streaming_options.h"

namespace lintel {

// A member is set by a row of server_flags(), or it is in the list of those without a flag in
// tests/server/flags/flags_test.cpp.
struct ServerOptions {
  ModelOptions models;

  ListenAddress listen;
  ConnectionOptions connections;
  SecurityOptions security;

  // Of one identity (a token's name, or a client certificate's); where callers are not told apart,
  // of all of them together. Its sessions and their memory are among the store's.
  Quotas::Limits identity;

  SessionStore::Options sessions{.session_memory_bytes = std::size_t{1} << 30,
                                 .idle_timeout = std::chrono::minutes(10)};

  StreamingOptions streaming;

  LogOptions logging;

  struct Monitoring {
    std::optional<ListenAddress> metrics_listen;  // HTTP: /metrics, /healthz, /readyz
    bool channelz = false;
  } monitoring;

  bool print_numerics = false;  // instead of serving
};

}  // namespace lintel
