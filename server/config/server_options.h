// SPDX-License-Identifier: Apache-2.0
// ServerOptions: everything an operator can choose, grouped, with its unit in its name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "server/api/streaming_options.h"
#include "server/chat/template/traits.h"
#include "server/core/listen_address.h"
#include "server/core/memory_limit.h"
#include "server/core/random_bytes.h"
#include "server/engine/prefix_cache.h"
#include "server/grpc/connection_settings.h"
#include "server/http/transport/http_message.h"
#include "server/models/model_aliases.h"
#include "server/models/model_options.h"
#include "server/observability/logging.h"
#include "server/security/quotas.h"
#include "server/sessions/session_manager.h"
#include "server/sessions/session_options.h"

namespace lintel {

inline constexpr int kDefaultHttpPort = 8080;

// SecurityOptions: authentication of callers and of the server.

struct SecurityOptions {
  std::filesystem::path tls_cert, tls_key;  // both empty: plain text
  std::filesystem::path tls_client_ca;      // not empty: clients need a certificate signed by it
  // Names of certificates with the role admin, where there are no tokens.
  std::vector<std::string> admin_certificates;
  bool insecure_public = false;       // plain text beyond this machine
  std::filesystem::path auth_tokens;  // BearerTokenTable; empty: no token is asked for
  bool tls() const { return !tls_cert.empty(); }
};

// Options whose sizes follow from the memory limit (server/app/memory_plan.h).

inline ModelOptions models_by_limit() {
  ModelOptions models;
  models.scheduling.max_queued_bytes = kAutoBytes;
  return models;
}

inline ConnectionOptions connections_by_limit() {
  ConnectionOptions connections;
  connections.memory_bytes = static_cast<std::int64_t>(kAutoBytes);
  return connections;
}

inline HttpOptions http_by_limit() {
  HttpOptions http;
  http.memory_bytes = static_cast<std::int64_t>(kAutoBytes);
  return http;
}

// A member is set by a row of server_flags(), or it is in the list of those without a flag in
// tests/server/config/flags_test.cpp.
struct ServerOptions {
  ModelOptions models = models_by_limit();
  std::vector<ModelAlias> model_aliases;  // the first that fits a name counts
  LateSystem late_system = LateSystem::kUser;

  ListenAddress listen;
  std::string replica_id = default_replica_id();  // among the servers of one address or store
  ConnectionOptions connections = connections_by_limit();
  HttpOptions http = http_by_limit();
  SecurityOptions security;

  // The bound of all that this server takes; kAutoBytes: read_memory_limit().
  std::size_t memory_limit_bytes = kAutoBytes;
  std::size_t request_memory_bytes = kAutoBytes;

  // Limits of one identity (a token's name, or a client certificate's), or of all callers together
  // if they are not identified. `sessions` has the limits of its sessions and their memory.
  Quotas::Limits identity;

  SessionManager::Options sessions{.session_memory_bytes = kAutoBytes,
                                   .idle_timeout = std::chrono::minutes(10),
                                   .max_queue_wait = std::chrono::minutes(10)};
  // kAutoBytes: what sessions leave free.
  PrefixCache::Options prefixes{.memory_bytes = kAutoBytes};

  // Sessions that outlive the server.
  struct DurableOptions {
    std::filesystem::path store;  // directory, or redis://...; empty: there are none
    // The default of sessions; nothing: kInput with a store, kNone without.
    std::optional<Durability> durability;
    std::chrono::milliseconds commit_interval_ms{5};
    std::int64_t park_tokens = 0;  // 0: by the size of a model's states (ParkPolicy)
    std::uint64_t store_size_bytes = std::uint64_t{64} << 30;
    int store_threads = 2;
    std::size_t load_queue = 1024;
    std::chrono::seconds expire = std::chrono::hours(720);
    // Options for conversations whose clients keep the history (StoredChatStates).
    bool chat_spill = false;
    std::chrono::seconds chat_spill_idle{60};
    std::chrono::seconds chat_spill_expire = std::chrono::hours(24);
    bool takes_other_numerics = true;
    // Calls that can be repeated elsewhere end so long into a drain; nothing: handover_after().
    std::optional<std::chrono::milliseconds> drain_handover_ms;
    // Liveness fails this long after a write to the store failed; 0: never.
    std::chrono::milliseconds store_broken_timeout_ms{60'000};
    std::chrono::seconds response_expire = std::chrono::hours(720);
    std::chrono::seconds response_resume{60};
    std::uint64_t identity_stored_bytes = 0;  // of an identity's stored responses; 0: any number

    static constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 36525);
  } durable;

  // Options of a store that servers share: Redis.
  struct SharedStoreOptions {
    std::chrono::milliseconds lease_ms{10'000};
    std::optional<int> wait_replicas;  // nothing: one, where there are any
    std::chrono::milliseconds wait_ms{50};
    std::filesystem::path credentials, ca, cert, key;
  } shared;

  struct InitialStates {
    std::filesystem::path directory;  // of snapshots; empty: none
    bool accept_other_numerics = false;
  } initial_states;

  StreamingOptions streaming;

  // Members of chats, completions and responses that the server does not know; else they are
  // ignored, and named in a header of the answer.
  bool refuses_unknown_members = false;

  LogOptions logging;

  struct Monitoring {
    std::optional<ListenAddress> metrics_listen;  // HTTP: /metrics, /healthz, /readyz
    bool channelz = false;
  } monitoring;

  // Instead of serving.
  bool print_numerics = false;
  bool check_config = false;

  // ORG/NAME[@REVISION][:QUANT] of a hub, from the command line; empty: none. models.directories
  // has its name, and its path after pull_model().
  std::string pulled_model;

  // True if no model, repository or configuration file was named: `models` has the packaged ones.
  bool serves_packaged_models = false;
  // True if http.listen was not named and is kDefaultHttpPort on loopback. A server that finds it
  // taken serves without HTTP.
  bool http_is_default = false;
};

}  // namespace lintel
