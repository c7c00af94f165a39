#include "server/app/option_checks.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/config/option_values.h"
#include "server/config/session_store_flags.h"
#include "server/models/model_repository.h"
#include "server/sessions/storage/redis/redis_url.h"

namespace lintel {
namespace {

// Plain text leaves this machine only with --insecure-public, and never with tokens.
void check_plain_text(const std::string& flag, const ListenAddress& address,
                      const SecurityOptions& security) {
  if (security.tls() || address.is_local()) return;
  if (!security.auth_tokens.empty()) {
    throw UsageError("--auth-tokens: tokens would travel in plain text to " +
                     address.to_string(address.port) + ": give --tls-cert and --tls-key");
  }
  if (!security.insecure_public) {
    throw UsageError(flag + " " + address.to_string(address.port) +
                     " would serve plain text to other machines: give --tls-cert and --tls-key, "
                     "or --insecure-public if something else protects the way");
  }
}

// What travels over the port, and who may read it on its way.
void check_security(const ServerOptions& options) {
  const SecurityOptions& security = options.security;
  if (security.tls_cert.empty() != security.tls_key.empty()) {
    throw UsageError("--tls-cert and --tls-key belong together");
  }
  if (!security.tls_client_ca.empty() && !security.tls()) {
    throw UsageError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  if (!security.admin_certificates.empty()) {
    if (security.tls_client_ca.empty())
      throw UsageError("--admin-certificate needs --tls-client-ca");
    if (!security.auth_tokens.empty()) {
      throw UsageError("--admin-certificate: with --auth-tokens the tokens' roles decide");
    }
  }
  check_plain_text("--listen", options.listen, security);
  if (options.http.listen) check_plain_text("--http-listen", *options.http.listen, security);
}

// Where sessions outlive the server, and what of that place can be chosen.
void check_store(const ServerOptions& options) {
  const ServerOptions::DurableOptions& durable = options.durable;
  const ServerOptions::SharedStoreOptions& shared = options.shared;
  const ServerOptions defaults;
  const std::string store = durable.store.string();
  const bool is_redis = is_redis_url(store);
  if (store.empty() && durable.durability.value_or(Durability::kNone) != Durability::kNone) {
    throw UsageError("--session-durability needs --session-store, but for none");
  }
  const bool hands_over =
      durable.drain_handover_ms && handover_after(durable) != ServerOptions::DurableOptions::kNever;
  if (store.empty() && hands_over) {
    throw UsageError("--drain-handover needs --session-store, but for off");
  }
  std::string why;
  const std::optional<RedisUrl> url = is_redis ? parse_redis_url(store, &why) : std::nullopt;
  if (is_redis && !url) throw UsageError("--session-store: " + why);
  if (!is_redis && store.find("://") != std::string::npos) {
    throw UsageError("--session-store: '" + store +
                     "' is neither a directory nor redis:// nor rediss://");
  }
  if (is_redis && durable.store_size_bytes != defaults.durable.store_size_bytes) {
    throw UsageError(
        "--session-store-size is of a directory: a Redis server is bounded by its own maxmemory");
  }
  const std::pair<const char*, bool> of_redis[] = {
      {"--session-lease", shared.lease_ms != defaults.shared.lease_ms},
      {"--session-store-wait-replicas", shared.wait_replicas.has_value()},
      {"--session-store-wait", shared.wait_ms != defaults.shared.wait_ms},
      {"--session-store-credentials", !shared.credentials.empty()}};
  for (const auto& [flag, is_given] : of_redis) {
    if (is_given && !is_redis) {
      throw UsageError(std::string(flag) + " needs --session-store redis:// or rediss://");
    }
  }
  const std::pair<const char*, bool> of_tls[] = {{"--session-store-ca", !shared.ca.empty()},
                                                 {"--session-store-cert", !shared.cert.empty()},
                                                 {"--session-store-key", !shared.key.empty()}};
  for (const auto& [flag, is_given] : of_tls) {
    if (is_given && !(url && url->is_encrypted)) {
      throw UsageError(std::string(flag) + " needs --session-store rediss://");
    }
  }
  if (shared.cert.empty() != shared.key.empty()) {
    throw UsageError("--session-store-cert and --session-store-key belong together");
  }
}

// Each names a model that may be served, and no name is there twice.
void check_adapters(ModelOptions& models) {
  std::vector<std::string> served;
  for (const auto& model : models.directories) served.push_back(model.name);
  served.insert(served.end(), models.load.begin(), models.load.end());
  std::set<std::pair<std::string, std::string>> names;
  for (AdapterDirectory& adapter : models.adapters) {
    if (adapter.model.empty()) {
      if (served.size() != 1 || served.front() == "*") {
        throw UsageError("--adapter: name the model of '" + adapter.name +
                         "', as in --adapter MODEL:" + adapter.name + "=DIR");
      }
      adapter.model = served.front();
    }
    // One of the repository may be loaded later.
    if (models.repository.empty() &&
        std::find(served.begin(), served.end(), adapter.model) == served.end()) {
      throw UsageError("--adapter: no --model is named '" + adapter.model + "'");
    }
    if (!names.emplace(adapter.model, adapter.name).second) {
      throw UsageError("--adapter: '" + adapter.name + "' of model '" + adapter.model +
                       "' is given twice");
    }
  }
}

}  // namespace

void check_together(ServerOptions& options, bool prefill_rows_given) {
  check_security(options);
  if (!options.http.listen && !options.http.cors_origins.empty()) {
    throw UsageError("--http-cors-origin needs --http-listen");
  }
  if (!options.http.allowed_hosts.empty() && !options.http.listen &&
      !options.monitoring.metrics_listen) {
    throw UsageError("--http-allowed-host needs --http-listen or --metrics-listen");
  }
  if (!options.models.load.empty() && options.models.repository.empty()) {
    throw UsageError("--load-model needs --model-repository");
  }
  if (options.models.directories.empty() && options.models.repository.empty()) {
    throw UsageError("--model is required, or --model-repository");
  }
  std::set<std::string> names;
  for (const std::string& name : options.models.load) {
    if (name != "*" && !is_model_name(name)) {
      throw UsageError("--load-model: '" + name + "' cannot name a model");
    }
    if (!names.insert(name).second) throw UsageError("--load-model: " + name + " is given twice");
  }
  for (const auto& model : options.models.directories) {
    if (!names.insert(model.name).second) {
      throw UsageError("--model: two models are named '" + model.name +
                       "'; give one another name with NAME=DIR");
    }
  }
  check_adapters(options.models);
  if (options.initial_states.accept_other_numerics && options.initial_states.directory.empty()) {
    throw UsageError("--accept-other-numerics needs --initial-states");
  }
  check_store(options);
  if (options.identity.token_burst > 0 && options.identity.tokens_per_second == 0) {
    throw UsageError("--identity-token-burst needs --identity-tokens-per-second");
  }
  Scheduler::Options& scheduling = options.models.scheduling;
  const bool rows_given = scheduling.max_batch_rows > 0;
  if (rows_given && scheduling.prefill_rows_per_step > scheduling.max_batch_rows) {
    if (prefill_rows_given) {
      throw UsageError("--prefill-rows " + std::to_string(scheduling.prefill_rows_per_step) +
                       " is more than --max-batch-rows " +
                       std::to_string(scheduling.max_batch_rows));
    }
    scheduling.prefill_rows_per_step = scheduling.max_batch_rows;
  }
}

}  // namespace lintel
