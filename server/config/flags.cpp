// SPDX-License-Identifier: Apache-2.0
#include "server/config/flags.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <vector>

#include "model/config/attention_spec.h"
#include "tools/describe/flags.h"

namespace lintel {
namespace {

// "2GiB - 1" of what is one byte less.
std::string bytes_bound(std::int64_t bytes) {
  const auto n = static_cast<std::uint64_t>(bytes);
  return n % 1024 == 1023 ? format_bytes(n + 1) + " - 1" : format_bytes(n);
}

std::string bytes_range(std::int64_t low, std::int64_t high) {
  return bytes_bound(low) + " to " + bytes_bound(high);
}

}  // namespace

std::int64_t parse_bytes_between(const std::string& text, std::int64_t low, std::int64_t high,
                                 const std::string& refusal) {
  const auto bytes = static_cast<std::int64_t>(parse_bytes(text));
  if (bytes >= low && bytes <= high) return bytes;
  if (!refusal.empty()) throw UsageError(refusal);
  throw UsageError("'" + text + "' is not from " + bytes_range(low, high));
}

std::chrono::milliseconds parse_duration_from(const std::string& text,
                                              std::chrono::milliseconds low, bool whole_seconds) {
  const std::chrono::milliseconds parsed = parse_duration(text);
  if (parsed < low || (whole_seconds && parsed.count() % 1000 != 0)) {
    throw UsageError("'" + text + "' is not at least " + format_duration(low) +
                     (whole_seconds ? " and whole seconds" : ""));
  }
  return parsed;
}

std::size_t index_of_word(const std::string& word, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string list;
  for (const std::string& known : words) list += (list.empty() ? "" : ", ") + known;
  throw UsageError("'" + word + "' is not one of: " + list + describe::did_you_mean(word, words));
}

std::string Flag::range() const {
  switch (type) {
    case Type::kNumber:
      return std::to_string(low) + " to " + std::to_string(high);
    case Type::kBytes:
      if (high != kMostBytes) return bytes_range(low, high);
      return low == 0 ? "" : bytes_bound(low) + " on";
    case Type::kDuration:
      return low == 0 ? "" : format_duration(std::chrono::milliseconds(low)) + " on";
    default:
      return "";
  }
}

// Flags of logs, metrics and channelz.

std::vector<Flag> logging_flags();
std::vector<Flag> monitoring_flags();

namespace {

using Monitoring = ServerOptions::Monitoring;

LogOptions& logging(ServerOptions& options) { return options.logging; }
Monitoring& monitoring(ServerOptions& options) { return options.monitoring; }

std::optional<ListenAddress> parse_metrics_address(const std::string& text) {
  const ListenAddress address = parse_listen_address(text);
  if (!address.unix_path.empty()) throw UsageError("'" + text + "' is not HOST:PORT");
  if (address.host.find(':') != std::string::npos) {
    throw UsageError("'" + text + "': metrics are served over IPv4 only");
  }
  return address;
}

std::string show_metrics_address(const std::optional<ListenAddress>& address) {
  return address ? address->to_string(address->port) : "";
}

}  // namespace

std::vector<Flag> logging_flags() {
  std::vector<std::pair<std::string, std::string>> levels;
  // "warning" is what `lintel admin log-level` prints.
  for (const char* const level :
       {"trace", "debug", "info", "warn", "warning", "error", "critical", "off"}) {
    levels.emplace_back(level, level);
  }
  return {
      choice_flag("--log-level", logging, &LogOptions::level, "LEVEL", levels,
                  "Least severe messages logged. Each call is a line at info"),
      choice_flag<LogOptions, bool>(
          "--log-format", logging, &LogOptions::json, "FORMAT", {{"text", false}, {"json", true}},
          "text, or json: one JSON object a line, errors at startup included"),
  };
}

std::vector<Flag> monitoring_flags() {
  return {
      text_flag("--metrics-listen", monitoring, &Monitoring::metrics_listen, "ADDRESS",
                parse_metrics_address, show_metrics_address,
                "HTTP on HOST:PORT: /metrics for Prometheus, /healthz, /readyz. Plain text, "
                "without prompts, output or ids; port 0 picks a free one"),
      switch_flag("--channelz", monitoring, &Monitoring::channelz,
                  "gRPC's channelz service: connections, peers and calls. With --auth-tokens for "
                  "the role admin, else for all callers"),
  };
}

// Flags of models and of the limits of one request.

std::vector<Flag> model_flags();
std::vector<Flag> request_limit_flags();

namespace {

ServerOptions& whole(ServerOptions& options) { return options; }
ModelOptions& models(ServerOptions& options) { return options.models; }
RequestLimits& limits(ServerOptions& options) { return options.models.limits; }

AttentionSpec parse_attention(const std::string& text) {
  try {
    return parse_attention_spec(text);
  } catch (const ModelError& error) {
    throw UsageError(error.what());
  }
}

std::string show_attention(const std::optional<AttentionSpec>& attention) {
  return attention ? attention->text : "";
}

double parse_bits(const std::string& text) {
  double bits = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, bits);
  if (error != std::errc() || rest != end || !(bits >= 0 && bits <= 1)) {
    throw UsageError("'" + text + "' is not a number from 0 to 1");
  }
  return bits;
}

std::string show_bits(double bits) {
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), bits);
  return {text, end};
}

}  // namespace

std::vector<Flag> model_flags() {
  using Options = ModelOptions;
  return {
      list_flag("--model", models, &Options::directories, "[NAME=]PATH", parse_model_directory,
                "Model directory or GGUF file to serve; repeat for several. NAME, which may be "
                "ORG/NAME, defaults to the last component of PATH. Without --model, --models, "
                "--model-repository and --config "
                "the small models are served"),
      path_flag("--model-repository", models, &Options::repository, "DIR",
                "Directory of models that are loaded, reloaded and unloaded at run time (`lintel "
                "model load NAME`): DIR/NAME/, or DIR/NAME/1/, DIR/NAME/2/ ... for versions, of "
                "which the highest is used"),
      path_flag("--models", models, &Options::on_request, "DIR",
                "Directory of models that requests load, in place of --model-repository: DIR/NAME/ "
                "or DIR/NAME/1/ as there, DIR/NAME.gguf, or a hub's cache (`lintel pull`). Models "
                "of --model are unloaded and loaded likewise"),
      duration_flag("--model-idle-unload", models, &Options::idle_unload_ms,
                    std::chrono::milliseconds(0),
                    "With --models a model is unloaded that no call has used for this long, unless "
                    "it has sessions in memory alone; 0: never"),
      list_flag(
          "--load-model", models, &Options::load, "NAME",
          [](const std::string& name) { return name; },
          "Model of --models or --model-repository to load at startup; repeat for several, '*' "
          "for all"),
      list_flag("--adapter", models, &Options::adapters, "[MODEL:]NAME=DIR",
                parse_adapter_directory,
                "LoRA adapter in PEFT's format, in addition to those in adapters/NAME/ of the "
                "model's directory; repeat for several. MODEL is optional if one model is served. "
                "Requests name it: `lintel generate --adapter NAME`"),
      list_flag("--chat-template", models, &Options::chat_templates, "[MODEL=]FILE",
                parse_chat_template_file,
                "Jinja file that replaces a model's own chat template; repeat for several models. "
                "MODEL is optional if one model is served"),
      list_flag("--tool-dialect", models, &Options::tool_dialects, "[MODEL=]NAME",
                parse_tool_dialect,
                "How a model writes tool calls: none, hermes, xml or pythonic. Defaults to what "
                "the chat template shows"),
      bytes_flag(
          "--model-memory", models, &Options::memory_bytes, 0, kMostBytes,
          "Memory for the weights and tables of all models and adapters, and for loading "
          "them; computed from file headers before weights are read. With --models those unused "
          "for longest are unloaded for others. 0: no limit"),
      choice_flag<Options, std::optional<WeightType>>(
          "--weight-type", models, &Options::weight_type, "TYPE",
          {{"auto", std::nullopt},
           {"f32", WeightType::kF32},
           {"bf16", WeightType::kBf16},
           {"int8", WeightType::kInt8},
           {"int4", WeightType::kInt4},
           {"int4-ffn", WeightType::kInt4Ffn},
           {"int4-all", WeightType::kInt4All}},
          "Type of the matrices in memory and in products. int8: a scale for each output; int4, of "
          "checkpoints: for each 32 inputs, the head in int8; int4-ffn: int4 in feed-forward "
          "layers, "
          "else int8; int4-all: in the head, too. Predictor, norms and states stay in f32. auto: "
          "the fastest type that loses at most --weight-type-loss bits a token against f32, "
          "measured at load (shown by `lintel model get`); f32 for small models, int8 for large "
          "ones without --weight-type-text, with it bf16 if no type loses as little; the stored "
          "types of a GGUF file"),
      path_flag("--weight-type-text", models, &Options::weight_type_text, "FILE",
                "Text whose first 512 tokens --weight-type auto measures on; checkpoints then may "
                "be served in 4 bits. A second or more for each type and 100 million weights"),
      text_flag("--weight-type-loss", models, &Options::weight_type_loss, "BITS", parse_bits,
                show_bits, "The most that --weight-type auto may lose"),
      choice_flag<Options, KvType>(
          "--kv-type", models, &Options::kv_type, "TYPE",
          {{"f32", KvType::kF32}, {"bf16", KvType::kBf16}, {"int8", KvType::kInt8}},
          "Type of cached keys and values in the softmax layers of checkpoints (Qwen3.5, hybrids): "
          "f32, bf16, or int8 with a scale for each position and head. `lintel model get` shows "
          "bytes a token. Sessions, snapshots and named states of another type are refused. Models "
          "without such a cache log a warning unless it is f32"),
      choice_flag<Options, KernelChoice>(
          "--kernels", models, &Options::kernels, "WHOSE",
          {{"auto", KernelChoice::kAuto},
           {"own", KernelChoice::kOwn},
           {"onednn", KernelChoice::kOneDnn}},
          "GEMM backend: Lintel's own kernels, or oneDNN where it is batch invariant (else own). "
          "auto: the faster one for each weight type, by a table. The bits of int8 are equal, "
          "those of f32 and bf16 are not. The log and `lintel model get` show the choice"),
      text_flag(
          "--attention", models, &Options::attention, "SPEC", parse_attention, show_attention,
          "Runs the weights with another attention than they were trained for, to compare speed: "
          "TYPE or TYPE:KEY=VALUE,KEY=VALUE with the keys of config.json, e.g. softmax:scale=0.2 "
          "or lsh:rounds=4,bits=32,chunk_size=29,seed=7 (seed: of tensors that the weights lack). "
          "recompute=true keeps no state and runs the whole prefix for every token. "
          "`lintel-convert --kinds` explains the keys. Types and keys: " +
              kinds_help()),
      switch_flag("--strict-config", models, &Options::strict_config,
                  "Refuses checkpoints with a key in config.json, or of the architecture in a GGUF "
                  "file, that is not known. Without it such a key is a warning in the log and in "
                  "`lintel model get`, and the model is served without it"),
      switch_flag("--print-numerics", whole, &ServerOptions::print_numerics,
                  "Prints each model's name, version, numerics hash and kernels, and exits. "
                  "Machines with equal hashes continue each other's sessions bit for bit"),
  };
}

std::vector<Flag> request_limit_flags() {
  using Limits = RequestLimits;
  constexpr std::int64_t kMost = 1'000'000'000;
  return {
      number_flag("--max-prompt-tokens", limits, &Limits::max_prompt_tokens, 1, kMost,
                  "Tokens of a prompt"),
      number_flag("--max-new-tokens", limits, &Limits::max_new_tokens, 1, kMost,
                  "Tokens a call produces for each sample"),
      number_flag("--max-samples", limits, &Limits::max_samples, 1, 4096,
                  "Samples of one prompt; also at most --max-batch-rows"),
      number_flag("--max-top-log2-probs", limits, &Limits::max_top_log2_probs, 0, 4096,
                  "Most likely tokens reported at each position"),
      number_flag("--max-stop-strings", limits, &Limits::max_stop_strings, 0, 1024,
                  "Stop strings of a call"),
      number_flag("--max-given-tokens", limits, &Limits::max_given_tokens, 0, kMost,
                  "Given tokens of a call"),
      number_flag("--max-score-tokens", limits, &Limits::max_score_tokens, 2, kMost,
                  "Tokens of all sequences of a Score call, at most 65536 sequences"),
      number_flag("--chat-max-tokens", limits, &Limits::chat_max_tokens, 1, kMost,
                  "Tokens of a chat's answer whose request has no max_completion_tokens; also at "
                  "most --max-new-tokens, and what is left of the context"),
  };
}

// Flags of addresses and connections.

std::vector<Flag> network_flags();
std::vector<Flag> http_flags();

namespace {

using std::chrono::milliseconds;

ServerOptions& all(ServerOptions& options) { return options; }
ConnectionOptions& connections(ServerOptions& options) { return options.connections; }
HttpOptions& http(ServerOptions& options) { return options.http; }
ModelOptions& model_options(ServerOptions& options) { return options.models; }

std::string show_address(const ListenAddress& address) { return address.to_string(address.port); }

std::optional<ListenAddress> parse_http_address(const std::string& text) {
  return parse_listen_address(text);
}

std::string show_http_address(const std::optional<ListenAddress>& address) {
  return address ? show_address(*address) : "";
}

// "https://example.org:8443", or "*".
std::string parse_origin(const std::string& text) {
  if (text == "*") return text;
  const std::size_t scheme = text.find("://");
  const bool is_origin = scheme != std::string::npos && scheme > 0 && scheme + 3 < text.size() &&
                         text.find_first_of("/?# ", scheme + 3) == std::string::npos;
  if (!is_origin) {
    throw UsageError("'" + text + "' is no origin: SCHEME://HOST or SCHEME://HOST:PORT, or *");
  }
  return text;
}

// "proxy.example", "proxy.example:8443" or "[fd00::1]:8443".
std::string parse_host(const std::string& text) {
  if (text.empty() || text.find_first_of("/?#@, *") != std::string::npos) {
    throw UsageError("'" + text + "' is no host: HOST or HOST:PORT");
  }
  return text;
}

// The default is this machine's name.
Flag replica_id_flag() {
  Flag flag = text_flag(
      "--replica-id", all, &ServerOptions::replica_id, "ID", parse_replica_id,
      [](const std::string& id) { return id; },
      "Name of this server among those that share an address or session storage: 1 to 64 letters, "
      "digits, '.', '_' and '-'. Every answer has it, as lintel-replica. Defaults to the host's "
      "name; servers on one host need different ones");
  flag.default_of_machine = true;
  return flag;
}

}  // namespace

std::vector<Flag> network_flags() {
  using Options = ConnectionOptions;
  return {
      text_flag("--listen", all, &ServerOptions::listen, "ADDRESS", parse_listen_address,
                show_address, "HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks a free one"),
      replica_id_flag(),
      bytes_flag("--max-message-size", connections, &Options::max_message_bytes, 4096, 0x7fffffff,
                 "Largest request message, in bytes"),
      bytes_flag("--connection-memory", connections, &Options::memory_bytes, 16 << 20,
                 std::int64_t{1} << 40,
                 "Memory of gRPC for all connections, half-sent messages included, in bytes; "
                 "beyond it calls are ended"),
      duration_flag("--keepalive-time", connections, &Options::keepalive_time_ms,
                    milliseconds(1000), "A connection silent for this long is pinged"),
      duration_flag("--keepalive-timeout", connections, &Options::keepalive_timeout_ms,
                    milliseconds(100),
                    "A ping unanswered for this long closes the connection and cancels its calls"),
      bytes_flag("--max-metadata-size", connections, &Options::max_metadata_bytes, 1024, 1 << 20,
                 "Largest headers of a call, in bytes"),
      number_flag("--max-connection-streams", connections, &Options::max_streams, 1, 1'000'000,
                  "Calls at a time on one connection; more wait at the client"),
      duration_flag(
          "--max-connection-age", connections, &Options::max_age_ms, milliseconds(0),
          "A connection this old, of HTTP too, takes no new calls; clients open another; 0: never"),
      duration_flag("--max-connection-age-grace", connections, &Options::max_age_grace_ms,
                    milliseconds(0),
                    "Streams of a connection past its age may run for this long; 0: to their end"),
      duration_flag("--drain-timeout", model_options, &ModelOptions::drain_timeout_ms,
                    milliseconds(0), "Running streams have this long to finish after SIGTERM"),
  };
}

std::vector<Flag> http_flags() {
  using Options = HttpOptions;
  return {
      text_flag("--http-listen", http, &Options::listen, "ADDRESS", parse_http_address,
                show_http_address,
                "Also serve HTTP/1.1, and the web UI at /, on HOST:PORT, [IPv6]:PORT or unix:PATH; "
                "port 0 picks a free one. TLS, tokens and plain text as for --listen. Off by "
                "default; 127.0.0.1:8080 if no model is named (--model)"),
      list_flag("--http-cors-origin", http, &Options::cors_origins, "ORIGIN", parse_origin,
                "Web pages of this origin may call, e.g. https://example.org; * for all; repeat "
                "for several. Pages of the server itself always may"),
      list_flag(
          "--http-allowed-host", http, &Options::allowed_hosts, "HOST", parse_host,
          "On a loopback address: another Host that requests may name, HOST or HOST:PORT, e.g. a "
          "proxy's; repeat for several. Names of this machine (localhost, 127.0.0.1, [::1]) and "
          "hosts of --http-cors-origin are always allowed, others refused (DNS rebinding)"),
      number_flag("--http-threads", http, &Options::threads, 1, 256,
                  "Threads that read, write and translate for all connections"),
      number_flag("--http-max-connections", http, &Options::max_connections, 1, 1'000'000,
                  "Connections at a time; more are answered with 503"),
      number_flag("--http-max-client-connections", http, &Options::max_client_connections, 1,
                  1'000'000,
                  "The same for one client address; clients of a proxy share its address"),
      bytes_flag("--http-max-header-size", http, &Options::max_header_bytes, 1024, 1 << 20,
                 "Largest first line and headers of a request, in bytes"),
      bytes_flag("--http-memory", http, &Options::memory_bytes, 1 << 20, std::int64_t{1} << 40,
                 "Bodies of all requests that are being read and parsed, in bytes; beyond it "
                 "requests are answered with 503"),
      duration_flag("--http-header-timeout", http, &Options::header_timeout_ms, milliseconds(10),
                    "Time to receive a request's headers; then it is refused"),
      duration_flag("--http-body-timeout", http, &Options::body_timeout_ms, milliseconds(10),
                    "Time to receive a request's body; then it is refused"),
      duration_flag("--http-idle-timeout", http, &Options::idle_timeout_ms, milliseconds(10),
                    "A connection without a request for this long is closed"),
      duration_flag("--http-write-timeout", http, &Options::write_timeout_ms, milliseconds(10),
                    "A client that reads nothing of its answer for this long is disconnected and "
                    "its call cancelled"),
      choice_flag<Options, ChatReasoningField>(
          "--chat-reasoning-field", http, &Options::chat_reasoning_field, "NAME",
          {{"reasoning_content", ChatReasoningField::kReasoningContent},
           {"reasoning", ChatReasoningField::kReasoning},
           {"both", ChatReasoningField::kBoth}},
          "Member of messages and deltas of /v1/chat/completions that has the reasoning; clients "
          "look for one or the other"),
  };
}

// Flags of authentication and of the limits of one identity.

std::vector<Flag> security_flags();
std::vector<Flag> identity_flags();

namespace {

SecurityOptions& security(ServerOptions& options) { return options.security; }
Quotas::Limits& identity(ServerOptions& options) { return options.identity; }
ServerOptions::DurableOptions& durable(ServerOptions& options) { return options.durable; }
SessionManager::Options& sessions(ServerOptions& options) { return options.sessions; }

}  // namespace

std::vector<Flag> security_flags() {
  using Options = SecurityOptions;
  return {
      path_flag("--tls-cert", security, &Options::tls_cert, "FILE",
                "Serve TLS with this PEM certificate, followed by its intermediates, for the names "
                "and addresses in its subject alternative names. Reloaded when it changes"),
      path_flag("--tls-key", security, &Options::tls_key, "FILE",
                "Its PEM private key, without a password"),
      path_flag("--tls-client-ca", security, &Options::tls_client_ca, "FILE",
                "Mutual TLS: clients need a certificate signed by one of these PEM authorities"),
      path_flag("--auth-tokens", security, &Options::auth_tokens, "FILE",
                "Calls need a bearer token of this file, except health. A line each, as `lintel "
                "token new` writes it: NAME ROLES sha256:HEX. Reloaded when it changes"),
      list_flag(
          "--admin-certificate", security, &Options::admin_certificates, "NAME",
          [](const std::string& name) { return name; },
          "In mutual TLS without --auth-tokens: clients of this name have the role admin; repeat "
          "for several. A certificate's name is its first subject alternative name, else its "
          "common name; the log prefixes it with x509:"),
      switch_flag("--insecure-public", security, &Options::insecure_public,
                  "Allow plain text on a public address: others on the network can read and change "
                  "prompts and output"),
  };
}

std::vector<Flag> identity_flags() {
  using Limits = Quotas::Limits;
  using Sessions = SessionManager::Options;
  constexpr std::int64_t kMost = 1'000'000'000'000;
  return {
      number_flag("--identity-max-streams", identity, &Limits::max_streams, 0, 1'000'000,
                  "Generate and Score calls at a time"),
      number_flag("--identity-max-sessions", sessions, &Sessions::max_sessions_per_owner, 0,
                  100'000'000, "Sessions at a time"),
      bytes_flag(
          "--identity-memory", sessions, &Sessions::bytes_per_owner, 0, kMostBytes,
          "State of its sessions and calls, in bytes; and as much again for what its requests "
          "hold of --request-memory"),
      number_flag(
          "--identity-tokens-per-second", identity, &Limits::tokens_per_second, 0, kMost,
          "Prompt and new tokens, charged as they are read and produced. Calls over the rate pause "
          "and share it; a call that would wait more than ten seconds to start is refused"),
      number_flag("--identity-token-burst", identity, &Limits::token_burst, 0, kMost,
                  "Unused tokens that accumulate; 0: ten seconds' worth"),
      bytes_flag("--identity-stored", durable,
                 &ServerOptions::DurableOptions::identity_stored_bytes, 0, kMostBytes,
                 "Its stored responses: their JSON and 512 bytes for each. Checked as a response "
                 "begins, whose answer is always stored. Not with redis://"),
  };
}

namespace {

using std::chrono::milliseconds;

using Handover = std::optional<std::chrono::milliseconds>;

Handover parse_handover(const std::string& text) {
  if (text == "off") return ServerOptions::DurableOptions::kNever;
  return parse_duration(text);
}

std::string show_handover(const Handover& after) {
  if (!after) return "";
  return *after == ServerOptions::DurableOptions::kNever ? "off" : format_duration(*after);
}

ServerOptions::SharedStoreOptions& shared(ServerOptions& options) { return options.shared; }

}  // namespace

std::chrono::milliseconds handover_after(const ServerOptions::DurableOptions& options) {
  constexpr std::chrono::milliseconds kShared{5000};
  const std::string store = options.store.string();
  const bool is_shared = store.rfind("redis://", 0) == 0 || store.rfind("rediss://", 0) == 0;
  return options.drain_handover_ms.value_or(is_shared ? kShared
                                                      : ServerOptions::DurableOptions::kNever);
}

std::vector<Flag> session_store_flags() {
  using Options = ServerOptions::DurableOptions;
  using Level = std::optional<Durability>;
  return {
      path_flag(
          "--session-store", durable, &Options::store, "DIR",
          "Directory, for this server alone, that keeps sessions across restarts, crashes and "
          "power losses; created if missing, with mode 0700. Or storage that servers share: "
          "redis://HOST:PORT of a Redis or Valkey server, or of some servers of a cluster, "
          "separated by commas; rediss:// with TLS. Without it sessions are in memory only"),
      choice_flag<Options, Level>(
          "--session-durability", durable, &Options::durability, "LEVEL",
          {{"none", Level(Durability::kNone)},
           {"call", Level(Durability::kCall)},
           {"input", Level(Durability::kInput)},
           {"token", Level(Durability::kToken)}},
          "What a session keeps after the server's end, unless its creator chooses. none; call: "
          "calls whose end was received; input: also a running call, which repeated by its call_id "
          "gives the same tokens and continues; token: also each token before it is sent. Defaults "
          "to input with --session-store, else none"),
      duration_flag(
          "--session-commit-interval", durable, &Options::commit_interval_ms, milliseconds(0),
          "Writes of several calls are gathered for this long into one commit. At the level token, "
          "tokens are sent this much later, up to four times that with more than 16 streams"),
      number_flag("--session-park-tokens", durable, &Options::park_tokens, 0, 1'000'000'000,
                  "A state is stored after this many tokens of a call, and at its end if as many "
                  "have come since the last state (a quarter if memory is short). A session that "
                  "is not in memory reads later tokens again, as a prompt. 0: 1024, and each "
                  "call's end for states of 1 MiB or more"),
      bytes_flag("--session-store-size", durable, &Options::store_size_bytes, 1 << 20, kMostBytes,
                 "Disk space for states of each size; beyond it sessions read their tokens again"),
      number_flag("--session-store-threads", durable, &Options::store_threads, 1, 64,
                  "Threads that wait for the disk, on which calls that name a session start"),
      number_flag("--session-load-queue", durable, &Options::load_queue, 1, 1'000'000,
                  "Calls that wait for such a thread; one more is refused"),
      duration_flag(
          "--session-expire", durable, &Options::expire, std::chrono::seconds(1),
          "A stored session unused for this long is removed, unless its creator chose a time"),
      switch_flag("--chat-spill", durable, &Options::chat_spill,
                  "Also store conversations whose clients send the whole history: the state after "
                  "the last turn and the tokens before it, so that the next turn alone is read "
                  "after a restart. Needs --session-store"),
      duration_flag("--chat-spill-idle", durable, &Options::chat_spill_idle,
                    std::chrono::seconds(0),
                    "A turn is stored this long after its end; earlier when memory is needed or "
                    "the server ends"),
      duration_flag("--chat-spill-expire", durable, &Options::chat_spill_expire,
                    std::chrono::seconds(1), "A stored turn is removed after this time"),
      choice_flag<Options, bool>(
          "--session-numerics", durable, &Options::takes_other_numerics, "WHAT",
          {{"warn", true}, {"strict", false}},
          "For stored sessions of other numerics. warn: they continue, with a line in the log and "
          "Session.numerics_changed_at; strict: calls on them are refused"),
      duration_flag(
          "--store-broken-timeout", durable, &Options::store_broken_timeout_ms, milliseconds(0),
          "Time after a failed write to storage until liveness (/healthz, v2/health/live) fails, "
          "so that the server is restarted. Readiness fails at once. 0: never"),
      text_flag("--drain-handover", durable, &Options::drain_handover_ms, "DURATION",
                parse_handover, show_handover,
                "After SIGTERM, time for calls with a call_id on stored sessions; then they end "
                "with CALL_MOVED and resume when repeated, on another server or after the restart. "
                "off: at the end of --drain-timeout. Defaults to 5s with shared storage, else off"),
      duration_flag("--response-expire", durable, &Options::response_expire,
                    std::chrono::seconds(1),
                    "A response of /v1/responses is removed this long after the last one that "
                    "continues it"),
      duration_flag("--response-resume", durable, &Options::response_resume,
                    std::chrono::seconds(0),
                    "A response whose server died counts as in progress for this long, then as "
                    "failed; one in the background continues then on another server of shared "
                    "storage. Its request with the same Idempotency-Key runs it again"),
  };
}

std::vector<Flag> shared_store_flags() {
  using Options = ServerOptions::SharedStoreOptions;
  return {
      duration_flag("--session-lease", shared, &Options::lease_ms, std::chrono::seconds(2),
                    "A session stays with a server that failed during a call for at most this "
                    "long; a call ends if its server cannot reach storage for this long, less a "
                    "second. Must exceed cluster-node-timeout"),
      text_flag(
          "--session-store-wait-replicas", shared, &Options::wait_replicas, "N",
          [](const std::string& text) {
            return std::optional<int>(static_cast<int>(parse_whole_number(text, 0, 16)));
          },
          [](const std::optional<int>& replicas) {
            return replicas ? std::to_string(*replicas) : std::string();
          },
          "Replicas of a Redis master that must have a write before it counts as stored. Defaults "
          "to 1 where there are replicas"),
      duration_flag("--session-store-wait", shared, &Options::wait_ms, milliseconds(1),
                    "Time to wait for these replicas before the write is repeated"),
      path_flag("--session-store-credentials", shared, &Options::credentials, "FILE",
                "File with the user and the password for Redis, a line each; the password alone "
                "for the default user"),
      path_flag("--session-store-ca", shared, &Options::ca, "FILE",
                "PEM authorities of a rediss:// server's certificate. Defaults to the system's"),
      path_flag("--session-store-cert", shared, &Options::cert, "FILE",
                "PEM certificate of this server for rediss:// storage that requires one"),
      path_flag("--session-store-key", shared, &Options::key, "FILE",
                "Its private key, PEM, without a password"),
  };
}

// Flags of scheduling, session memory and streaming.

std::vector<Flag> scheduling_flags();
std::vector<Flag> session_flags();
std::vector<Flag> streaming_flags();

namespace {

using std::chrono::milliseconds;

Scheduler::Options& scheduling(ServerOptions& options) { return options.models.scheduling; }
SessionManager::Options& session_options(ServerOptions& options) { return options.sessions; }
PrefixCache::Options& prefix_options(ServerOptions& options) { return options.prefixes; }
ServerOptions::InitialStates& initial_states(ServerOptions& options) {
  return options.initial_states;
}
StreamingOptions& streaming(ServerOptions& options) { return options.streaming; }

Flag workers_flag() {
  Flag flag = number_flag(
      "--workers", scheduling, &Scheduler::Options::workers, 1, 1024,
      "Worker threads; defaults to one per processor available to the process or container");
  flag.default_of_machine = true;
  return flag;
}

// A number, or "auto", which is held as 0.
Flag number_or_auto(std::string name, int Scheduler::Options::*member, int low, int high,
                    std::string help) {
  const auto parse = [low, high](const std::string& text) {
    return text == "auto" ? 0 : static_cast<int>(parse_whole_number(text, low, high));
  };
  const auto show = [](int number) { return number == 0 ? "auto" : std::to_string(number); };
  Flag flag = text_flag(std::move(name), scheduling, member, "N", parse, show, std::move(help));
  flag.type = Flag::Type::kNumber;
  flag.low = low;
  flag.high = high;
  return flag;
}

Flag batch_rows_flag() {
  return number_or_auto(
      "--max-batch-rows", &Scheduler::Options::max_batch_rows, 1, 4096,
      "Sequences that a worker decodes together, and rows of its step. auto: 64 in f32; in bf16 "
      "and int8 16 to 64, so that the states of all workers fit a quarter of the last cache; steps "
      "of prompts alone have up to 64 rows in f32, else 128");
}

}  // namespace

std::vector<Flag> scheduling_flags() {
  using Options = Scheduler::Options;
  return {
      workers_flag(),
      batch_rows_flag(),
      number_flag("--prefill-rows", scheduling, &Options::prefill_rows_per_step, 1, 4096,
                  "Prompt rows of a step that also decodes; at most --max-batch-rows"),
      number_flag("--max-queued-requests", scheduling, &Options::max_queued_requests, 1, 1'000'000,
                  "Requests accepted but not yet in a batch; one more is refused"),
      bytes_flag("--max-queued-bytes", scheduling, &Options::max_queued_bytes, 1, kMostBytes,
                 "Memory of those requests and their messages; one more is refused, unless the "
                 "queue is empty",
                 "no request fits into 0 bytes"),
      choice_flag<Options, Speculation>(
          "--speculation", scheduling, &Options::speculation, "MODE",
          {{"off", Speculation::kOff}, {"auto", Speculation::kAuto}, {"on", Speculation::kOn}},
          "Speculative decoding: draft tokens in the same step make few streams faster and change "
          "no token. off; auto: where a draft is likely and the step has few rows; on: every "
          "draft, for tests"),
      number_flag("--speculation-rows", scheduling, &Options::speculation_rows, 1, 1024,
                  "Rows of a step up to which draft tokens are added; at most those of a step of "
                  "prompts alone"),
      number_or_auto("--step-threads", &Options::step_threads, 1, 32,
                     "Threads that share a step while other workers are idle: few streams get "
                     "faster, no token changes. auto: as long as each doubling saves a tenth of "
                     "the step's time, measured while serving, at most one per processor"),
  };
}

namespace {

// The default is a part of this machine's memory.
Flag request_memory_flag() {
  Flag flag = bytes_flag(
      "--request-memory", all, &ServerOptions::request_memory_bytes, 1 << 20, kMostBytes,
      "Memory for what requests hold from when they are parsed until they are answered, in bytes: "
      "bodies, prompts, answers that are not streamed, events that are kept. Each is admitted with "
      "the most that it may hold: beyond the limit it is answered with RESOURCE_EXHAUSTED (429), "
      "or "
      "with INVALID_ARGUMENT where it can never fit. Defaults to an eighth of the memory of the "
      "container, or of the machine, and 512MiB at least");
  flag.default_of_machine = true;
  return flag;
}

}  // namespace

std::vector<Flag> session_flags() {
  using Options = SessionManager::Options;
  return {
      request_memory_flag(),
      number_flag("--max-sessions", session_options, &Options::max_sessions, 0, 100'000'000,
                  "Sessions at a time; 0: only --session-memory limits them"),
      bytes_flag("--session-memory", session_options, &Options::session_memory_bytes, 1, kMostBytes,
                 "Memory for sessions and running calls, in bytes: states, histories and records; "
                 "for each sample of a running call also 40 KB of draft tokens, and at most "
                 "--outbox-tokens unread tokens of 64 bytes plus 8 for each of top_log2_probs. "
                 "Calls on existing sessions are never refused for lack of it",
                 "no session fits into 0 bytes"),
      duration_flag("--session-idle-timeout", session_options, &Options::idle_timeout,
                    milliseconds(0), "A session unused for this long is evicted; 0: never"),
      number_flag("--session-history-tokens", session_options, &Options::history_tokens, 1,
                  1'000'000'000,
                  "Last tokens of a session that are kept, for reading and rewinding, at 1.25 to "
                  "4.25 bytes each; a session can ask for fewer"),
      bytes_flag("--prefix-cache-memory", prefix_options, &PrefixCache::Options::memory_bytes, 0,
                 kMostBytes,
                 "Memory for states after earlier prompts: a prompt with the same beginning, of "
                 "the same caller, continues from there. Only uses what sessions and calls leave "
                 "of --session-memory. 0: off"),
      switch_flag("--chat-read-ahead", prefix_options, &PrefixCache::Options::reads_ahead,
                  "While a model has nothing else to do it reads the last answer as the chat "
                  "template will write it, so that the next turn reads the question alone"),
      path_flag(
          "--initial-states", initial_states, &ServerOptions::InitialStates::directory, "DIR",
          "Directory of snapshots (`lintel session snapshot`), each a named state for all callers: "
          "DIR/NAME.snapshot is `lintel generate --initial-state NAME`. Read at startup, for "
          "models loaded then; a damaged one, or one of other weights, prevents the start"),
      switch_flag("--accept-other-numerics", initial_states,
                  &ServerOptions::InitialStates::accept_other_numerics,
                  "Also accept --initial-states of machines with other numerics"),
  };
}

std::vector<Flag> streaming_flags() {
  using Options = StreamingOptions;
  return {
      duration_flag("--chunk-interval", streaming, &Options::chunk_interval_ms, milliseconds(0),
                    "Tokens of a stream are gathered for this long into one message; from four "
                    "streams a worker on, half a worker's streams times as long, at most 16 times; "
                    "0: a message for each step"),
      number_flag("--outbox-tokens", streaming, &Options::outbox_tokens, 1, 10'000'000,
                  "A stream with more unread tokens than this is paused"),
  };
}

std::vector<Flag> server_flags() {
  struct Group {
    const char* heading;
    std::vector<Flag> flags;
  };
  Group groups[] = {
      {"Models", model_flags()},
      {"Network", network_flags()},
      {"HTTP", http_flags()},
      {"Security", security_flags()},
      {"Limits for each name of a token or certificate, 0: none", identity_flags()},
      {"Scheduling, for each model", scheduling_flags()},
      {"Sessions", session_flags()},
      {"Sessions that outlive the server", session_store_flags()},
      {"A session store that servers share", shared_store_flags()},
      {"Limits of one request", request_limit_flags()},
      {"Streaming", streaming_flags()},
      {"Logging, to standard error", logging_flags()},
      {"Monitoring", monitoring_flags()},
  };
  std::vector<Flag> all;
  for (Group& group : groups) {
    for (Flag& flag : group.flags) {
      flag.group = group.heading;
      all.push_back(std::move(flag));
    }
  }
  return all;
}

}  // namespace lintel
