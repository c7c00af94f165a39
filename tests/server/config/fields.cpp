// SPDX-License-Identifier: Apache-2.0
#include "tests/server/config/fields.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <type_traits>

#include "server/chat/template/traits.h"

namespace lintel::testing {
namespace {

template <typename T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<int>(value));
  } else {
    return std::to_string(value);
  }
}
template <typename Rep, typename Period>
std::string text_of(const std::chrono::duration<Rep, Period>& duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}
std::string text_of(const std::string& text) { return text; }
std::string text_of(const std::filesystem::path& path) { return path.string(); }
std::string text_of(const ListenAddress& address) { return address.to_string(address.port); }
std::string text_of(const ModelDirectory& model) { return model.name + "=" + model.path.string(); }
std::string text_of(const AdapterDirectory& adapter) {
  return adapter.model + ":" + adapter.name + "=" + adapter.path.string();
}
std::string text_of(const ChatTemplateFile& file) { return file.model + "=" + file.path.string(); }
std::string text_of(const GivenToolDialect& given) {
  return given.model + "=" + std::string(name_of(given.dialect));
}
std::string text_of(const ModelAlias& alias) { return alias.pattern + "=" + alias.model; }
std::string text_of(const AttentionSpec& attention) { return attention.text; }
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? "some " + text_of(*value) : "none";
}
template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += text_of(value) + "\n";
  return text;
}

class Fields {
 public:
  template <typename T>
  void add(std::string name, const T& value) {
    all.push_back({std::move(name), &value, text_of(value)});
  }
  std::vector<Field> all;
};

void add_models(ModelOptions& models, Fields& fields) {
  auto& [directories, adapters, chat_templates, tool_dialects, repository, on_request,
         idle_unload_ms, load, memory_bytes, strict_config, weight_type, weight_type_text,
         weight_type_loss, kv_type, context, kernels, attention, scheduling, limits,
         drain_timeout_ms] = models;
  fields.add("models.directories", directories);
  fields.add("models.adapters", adapters);
  fields.add("models.chat_templates", chat_templates);
  fields.add("models.tool_dialects", tool_dialects);
  fields.add("models.repository", repository);
  fields.add("models.on_request", on_request);
  fields.add("models.idle_unload_ms", idle_unload_ms);
  fields.add("models.load", load);
  fields.add("models.memory_bytes", memory_bytes);
  fields.add("models.strict_config", strict_config);
  fields.add("models.weight_type", weight_type);
  fields.add("models.weight_type_text", weight_type_text);
  fields.add("models.weight_type_loss", weight_type_loss);
  fields.add("models.kv_type", kv_type);
  fields.add("models.context", context);
  fields.add("models.kernels", kernels);
  fields.add("models.attention", attention);
  fields.add("models.drain_timeout_ms", drain_timeout_ms);

  auto& [workers, max_batch_rows, max_queued_requests, max_queued_bytes, prefill_rows_per_step,
         prompt_rows_per_step, most_rows_per_step, speculation, speculation_rows, step_threads,
         mask_budget] = scheduling;
  fields.add("models.scheduling.workers", workers);
  fields.add("models.scheduling.max_batch_rows", max_batch_rows);
  fields.add("models.scheduling.max_queued_requests", max_queued_requests);
  fields.add("models.scheduling.max_queued_bytes", max_queued_bytes);
  fields.add("models.scheduling.prefill_rows_per_step", prefill_rows_per_step);
  fields.add("models.scheduling.prompt_rows_per_step", prompt_rows_per_step);
  fields.add("models.scheduling.most_rows_per_step", most_rows_per_step);
  fields.add("models.scheduling.speculation", speculation);
  fields.add("models.scheduling.speculation_rows", speculation_rows);
  fields.add("models.scheduling.step_threads", step_threads);
  fields.add("models.scheduling.mask_budget", mask_budget);

  auto& [max_prompt_tokens, max_new_tokens, max_samples, max_top_log2_probs, max_stop_strings,
         max_given_tokens, max_score_tokens, chat_max_tokens] = limits;
  fields.add("models.limits.max_prompt_tokens", max_prompt_tokens);
  fields.add("models.limits.max_new_tokens", max_new_tokens);
  fields.add("models.limits.max_samples", max_samples);
  fields.add("models.limits.max_top_log2_probs", max_top_log2_probs);
  fields.add("models.limits.max_stop_strings", max_stop_strings);
  fields.add("models.limits.max_given_tokens", max_given_tokens);
  fields.add("models.limits.max_score_tokens", max_score_tokens);
  fields.add("models.limits.chat_max_tokens", chat_max_tokens);
}

void add_connections(ConnectionOptions& connections, Fields& fields) {
  auto& [max_message_bytes, memory_bytes, max_metadata_bytes, max_streams, keepalive_time_ms,
         keepalive_timeout_ms, max_age_ms, max_age_grace_ms] = connections;
  fields.add("connections.max_message_bytes", max_message_bytes);
  fields.add("connections.memory_bytes", memory_bytes);
  fields.add("connections.max_metadata_bytes", max_metadata_bytes);
  fields.add("connections.max_streams", max_streams);
  fields.add("connections.keepalive_time_ms", keepalive_time_ms);
  fields.add("connections.keepalive_timeout_ms", keepalive_timeout_ms);
  fields.add("connections.max_age_ms", max_age_ms);
  fields.add("connections.max_age_grace_ms", max_age_grace_ms);
}

void add_http(HttpOptions& http, Fields& fields) {
  auto& [listen, cors_origins, allowed_hosts, threads, max_connections, max_client_connections,
         max_header_bytes, memory_bytes, header_timeout_ms, body_timeout_ms, idle_timeout_ms,
         write_timeout_ms, heartbeat_ms, chat_reasoning_field] = http;
  fields.add("http.listen", listen);
  fields.add("http.cors_origins", cors_origins);
  fields.add("http.allowed_hosts", allowed_hosts);
  fields.add("http.threads", threads);
  fields.add("http.max_connections", max_connections);
  fields.add("http.max_client_connections", max_client_connections);
  fields.add("http.max_header_bytes", max_header_bytes);
  fields.add("http.memory_bytes", memory_bytes);
  fields.add("http.header_timeout_ms", header_timeout_ms);
  fields.add("http.body_timeout_ms", body_timeout_ms);
  fields.add("http.idle_timeout_ms", idle_timeout_ms);
  fields.add("http.write_timeout_ms", write_timeout_ms);
  fields.add("http.heartbeat_ms", heartbeat_ms);
  fields.add("http.chat_reasoning_field", chat_reasoning_field);
}

void add_callers(SecurityOptions& security, Quotas::Limits& identity, Fields& fields) {
  auto& [tls_cert, tls_key, tls_client_ca, admin_certificates, insecure_public, auth_tokens] =
      security;
  fields.add("security.tls_cert", tls_cert);
  fields.add("security.tls_key", tls_key);
  fields.add("security.tls_client_ca", tls_client_ca);
  fields.add("security.admin_certificates", admin_certificates);
  fields.add("security.insecure_public", insecure_public);
  fields.add("security.auth_tokens", auth_tokens);

  auto& [max_streams, tokens_per_second, token_burst] = identity;
  fields.add("identity.max_streams", max_streams);
  fields.add("identity.tokens_per_second", tokens_per_second);
  fields.add("identity.token_burst", token_burst);
}

void add_sessions(SessionManager::Options& sessions, Fields& fields) {
  auto& [max_sessions, session_memory_bytes, idle_timeout, max_sessions_per_owner, bytes_per_owner,
         history_tokens, max_queue_wait] = sessions;
  fields.add("sessions.max_sessions", max_sessions);
  fields.add("sessions.session_memory_bytes", session_memory_bytes);
  fields.add("sessions.idle_timeout", idle_timeout);
  fields.add("sessions.max_sessions_per_owner", max_sessions_per_owner);
  fields.add("sessions.bytes_per_owner", bytes_per_owner);
  fields.add("sessions.history_tokens", history_tokens);
  fields.add("sessions.max_queue_wait", max_queue_wait);
}

void add_durable(ServerOptions::DurableOptions& durable, Fields& fields) {
  auto& [store, durability, commit_interval_ms, park_tokens, store_size_bytes, store_threads,
         load_queue, expire, chat_spill, chat_spill_idle, chat_spill_expire, takes_other_numerics,
         drain_handover_ms, store_broken_timeout_ms, response_expire, response_resume,
         identity_stored_bytes] = durable;
  fields.add("durable.store", store);
  fields.add("durable.durability", durability);
  fields.add("durable.commit_interval_ms", commit_interval_ms);
  fields.add("durable.park_tokens", park_tokens);
  fields.add("durable.store_size_bytes", store_size_bytes);
  fields.add("durable.store_threads", store_threads);
  fields.add("durable.load_queue", load_queue);
  fields.add("durable.expire", expire);
  fields.add("durable.chat_spill", chat_spill);
  fields.add("durable.chat_spill_idle", chat_spill_idle);
  fields.add("durable.chat_spill_expire", chat_spill_expire);
  fields.add("durable.takes_other_numerics", takes_other_numerics);
  fields.add("durable.drain_handover_ms", drain_handover_ms);
  fields.add("durable.store_broken_timeout_ms", store_broken_timeout_ms);
  fields.add("durable.response_expire", response_expire);
  fields.add("durable.response_resume", response_resume);
  fields.add("durable.identity_stored_bytes", identity_stored_bytes);
}

}  // namespace

std::vector<Field> fields_of(ServerOptions& options) {
  Fields fields;
  auto& [models, model_aliases, late_system, listen, replica_id, connections, http, security,
         memory_limit_bytes, request_memory_bytes, identity, sessions, prefixes, durable, shared,
         initial_states, streaming, refuses_unknown_members, logging, monitoring, print_numerics,
         check_config, pulled_model, serves_packaged_models, http_is_default] = options;
  add_models(models, fields);
  fields.add("model_aliases", model_aliases);
  fields.add("late_system", late_system);
  fields.add("listen", listen);
  fields.add("replica_id", replica_id);
  add_connections(connections, fields);
  add_http(http, fields);
  add_callers(security, identity, fields);
  fields.add("memory_limit_bytes", memory_limit_bytes);
  fields.add("request_memory_bytes", request_memory_bytes);
  add_sessions(sessions, fields);
  add_durable(durable, fields);
  auto& [lease_ms, wait_replicas, wait_ms, credentials, ca, cert, key] = shared;
  fields.add("shared.lease_ms", lease_ms);
  fields.add("shared.wait_replicas", wait_replicas);
  fields.add("shared.wait_ms", wait_ms);
  fields.add("shared.credentials", credentials);
  fields.add("shared.ca", ca);
  fields.add("shared.cert", cert);
  fields.add("shared.key", key);
  auto& [prefix_bytes, least_tokens, reads_ahead] = prefixes;
  fields.add("prefixes.memory_bytes", prefix_bytes);
  fields.add("prefixes.least_tokens", least_tokens);
  fields.add("prefixes.reads_ahead", reads_ahead);
  auto& [directory, accept_other_numerics] = initial_states;
  fields.add("initial_states.directory", directory);
  fields.add("initial_states.accept_other_numerics", accept_other_numerics);
  auto& [chunk_interval_ms, outbox_tokens] = streaming;
  fields.add("streaming.chunk_interval_ms", chunk_interval_ms);
  fields.add("streaming.outbox_tokens", outbox_tokens);
  fields.add("refuses_unknown_members", refuses_unknown_members);
  auto& [level, json] = logging;
  fields.add("logging.level", level);
  fields.add("logging.json", json);
  auto& [metrics_listen, channelz] = monitoring;
  fields.add("monitoring.metrics_listen", metrics_listen);
  fields.add("monitoring.channelz", channelz);
  fields.add("print_numerics", print_numerics);
  fields.add("check_config", check_config);
  fields.add("pulled_model", pulled_model);
  fields.add("serves_packaged_models", serves_packaged_models);
  fields.add("http_is_default", http_is_default);
  return fields.all;
}

}  // namespace lintel::testing
