// SPDX-License-Identifier: Apache-2.0
#include "server/config/flags.h"

#include <algorithm>
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
                  "Least severe messages logged: trace, debug, info, warn, error, critical or off. "
                  "Each call is a line at info"),
      choice_flag<LogOptions, bool>(
          "--log-format", logging, &LogOptions::json, "FORMAT", {{"text", false}, {"json", true}},
          "text, or json for one JSON object a line, errors at the start included"),
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
                  "the role admin, without for all callers"),
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

}  // namespace

std::vector<Flag> model_flags() {
  using Options = ModelOptions;
  return {
      list_flag(
          "--model", models, &Options::directories, "[NAME=]PATH", parse_model_directory,
          "Model directory or GGUF file to serve; repeat for several. NAME is the last component "
          "of "
          "PATH unless given. Without it, --model-repository and --config: the small models that "
          "come with the program"),
      path_flag("--model-repository", models, &Options::repository, "DIR",
                "Directory of models that can be loaded, reloaded and unloaded while the server "
                "runs (`lintel model load NAME`): DIR/NAME/, or DIR/NAME/1/, DIR/NAME/2/ ... for "
                "versions, of which the highest is taken"),
      list_flag(
          "--load-model", models, &Options::load, "NAME",
          [](const std::string& name) { return name; },
          "Model of the repository to load at the start; repeat for several, '*' for all"),
      list_flag(
          "--adapter", models, &Options::adapters, "[MODEL:]NAME=DIR", parse_adapter_directory,
          "LoRA adapter of a model, as PEFT writes it, in addition to those in adapters/NAME/ of "
          "the model's directory, which are loaded with it; repeat for several. MODEL may be left "
          "out where one model is served. Requests name it: `lintel generate --adapter NAME`"),
      list_flag(
          "--chat-template", models, &Options::chat_templates, "[MODEL=]FILE",
          parse_chat_template_file,
          "Chat template of a model, a Jinja text, in place of its own; repeat for several models. "
          "MODEL may be left out where one model is served"),
      list_flag("--tool-dialect", models, &Options::tool_dialects, "[MODEL=]NAME",
                parse_tool_dialect,
                "How a model writes calls of tools: none, hermes, xml or pythonic. Found out from "
                "the chat "
                "template unless given"),
      bytes_flag(
          "--model-memory", models, &Options::memory_bytes, 0, kMostBytes,
          "Memory for the weights and tables of all models and adapters, and for what loading "
          "one takes in addition; computed from the files before any weight is read. 0: no "
          "bound"),
      choice_flag<Options, std::optional<WeightType>>(
          "--weight-type", models, &Options::weight_type, "TYPE",
          {{"auto", std::nullopt},
           {"f32", WeightType::kF32},
           {"bf16", WeightType::kBf16},
           {"int8", WeightType::kInt8}},
          "Type of the matrices in memory and in products, for any type in the file: f32, bf16, or "
          "int8 (a scale for each output, inputs quantised row by row). The predictor, the norms "
          "and the states stay in f32. auto: the fastest of them that loses at most 0.002 bits a "
          "token against f32, found while the model is loaded (`lintel model get` says what was "
          "found); "
          "f32 of small models; of a GGUF file its quantised tensors as they are stored"),
      choice_flag<Options, KvType>(
          "--kv-type", models, &Options::kv_type, "TYPE",
          {{"f32", KvType::kF32}, {"bf16", KvType::kBf16}, {"int8", KvType::kInt8}},
          "Type of cached keys and values in the softmax layers of checkpoints (Qwen3.5, hybrids): "
          "f32, bf16, or int8 with a scale for each position and head. `lintel model get` shows "
          "bytes a token. Sessions, snapshots and named states of another type are refused. Other "
          "models have no such cache: they get a warning unless it is f32"),
      choice_flag<Options, KernelChoice>(
          "--kernels", models, &Options::kernels, "WHOSE",
          {{"auto", KernelChoice::kAuto},
           {"own", KernelChoice::kOwn},
           {"onednn", KernelChoice::kOneDnn}},
          "Who multiplies the matrices: our own kernels, or oneDNN wherever a row has the same "
          "bits "
          "in any batch of it (else our own). auto: for each weight type what is faster on this "
          "machine, by a table. int8 has the same bits either way, f32 and bf16 have not. What "
          "runs "
          "is logged, and in `lintel model get`"),
      text_flag("--attention", models, &Options::attention, "SPEC", parse_attention, show_attention,
                "Runs the weights with another attention than they were trained for, to compare "
                "speed: TYPE or TYPE:KEY=VALUE,KEY=VALUE with keys as in config.json, e.g. "
                "softmax:scale=0.2 or lsh:rounds=4,bits=32,chunk_size=29,seed=7 (seed: of tensors "
                "that the weights have not). recompute=true keeps no state and runs the whole "
                "prefix for every token, as published baselines did. Types and their keys: " +
                    kinds_help()),
      switch_flag(
          "--print-numerics", whole, &ServerOptions::print_numerics,
          "Does not serve: prints a line for each model, its name, version, the hash of "
          "what this machine computes with it (`lintel model get`: numerics) and what "
          "computes it. Machines with equal hashes continue each other's sessions bit for bit"),
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
                  "Tokens of a Score call, all sequences (65536 at most) together"),
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
      "What this server is called among others behind one address or with one session store: 1 to "
      "64 letters, digits, '.', '_' and '-'. Every answer names it, as lintel-replica. The default "
      "is the host's name; of servers on one host each needs its own");
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
                 "What gRPC may hold of all connections, half-sent messages for one, in bytes "
                 "(suffixes as above); beyond it calls are ended"),
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
          "A connection, of HTTP, too, this old takes no new calls; clients open another; "
          "0: never"),
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
      text_flag(
          "--http-listen", http, &Options::listen, "ADDRESS", parse_http_address, show_http_address,
          "Serve HTTP/1.1 there, too: HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks a free "
          "one. TLS, tokens and what plain text needs are as on --listen. The page is at /. "
          "Off unless given; 127.0.0.1:8080 where no model is named either (--model)"),
      list_flag("--http-cors-origin", http, &Options::cors_origins, "ORIGIN", parse_origin,
                "Web pages of this origin may call, e.g. https://example.org; * for all pages; "
                "repeat for several. Pages of the server itself always may"),
      list_flag("--http-allowed-host", http, &Options::allowed_hosts, "HOST", parse_host,
                "On a loopback address: requests may call the server by this name, too, HOST or "
                "HOST:PORT, as a proxy in front of it may; repeat for several. Names of this "
                "machine (localhost, 127.0.0.1, [::1]) and hosts of --http-cors-origin always "
                "are, others are refused: a web page may have its own name point here"),
      number_flag("--http-threads", http, &Options::threads, 1, 256,
                  "Threads that read, write and translate for all connections"),
      number_flag("--http-max-connections", http, &Options::max_connections, 1, 1'000'000,
                  "Connections at a time; more are answered with 503"),
      number_flag("--http-max-client-connections", http, &Options::max_client_connections, 1,
                  1'000'000, "Of one address, likewise; behind a proxy all have the proxy's"),
      bytes_flag("--http-max-header-size", http, &Options::max_header_bytes, 1024, 1 << 20,
                 "Largest first line and headers of a request, in bytes"),
      bytes_flag("--http-memory", http, &Options::memory_bytes, 1 << 20, std::int64_t{1} << 40,
                 "Bodies of requests that are being read and parsed, of all connections, in bytes; "
                 "beyond it "
                 "requests are answered with 503"),
      duration_flag("--http-header-timeout", http, &Options::header_timeout_ms, milliseconds(10),
                    "A request's headers come within this time, or it is refused"),
      duration_flag("--http-body-timeout", http, &Options::body_timeout_ms, milliseconds(10),
                    "Its body comes within this time"),
      duration_flag("--http-idle-timeout", http, &Options::idle_timeout_ms, milliseconds(10),
                    "A connection without a request for this long is closed"),
      duration_flag("--http-write-timeout", http, &Options::write_timeout_ms, milliseconds(10),
                    "A client that takes nothing of its answer for this long is gone: its call is "
                    "cancelled"),
  };
}

// Flags of authentication and of the limits of one identity.

std::vector<Flag> security_flags();
std::vector<Flag> identity_flags();

namespace {

SecurityOptions& security(ServerOptions& options) { return options.security; }
Quotas::Limits& identity(ServerOptions& options) { return options.identity; }
SessionManager::Options& sessions(ServerOptions& options) { return options.sessions; }

}  // namespace

std::vector<Flag> security_flags() {
  using Options = SecurityOptions;
  return {
      path_flag("--tls-cert", security, &Options::tls_cert, "FILE",
                "Serve TLS with this PEM certificate (its intermediates after it), for names and "
                "addresses in its subject alternative names. Read again when it changes"),
      path_flag("--tls-key", security, &Options::tls_key, "FILE",
                "Its PEM private key, without a password"),
      path_flag("--tls-client-ca", security, &Options::tls_client_ca, "FILE",
                "Mutual TLS: clients need a certificate signed by one of these, PEM"),
      path_flag("--auth-tokens", security, &Options::auth_tokens, "FILE",
                "Calls need a bearer token of this file: a line each, NAME ROLES sha256:HEX, as "
                "`lintel token new` makes them. Read again when it changes. Health needs none"),
      list_flag(
          "--admin-certificate", security, &Options::admin_certificates, "NAME",
          [](const std::string& name) { return name; },
          "In mutual TLS without --auth-tokens: clients of this name have the role admin (loading "
          "models, log level, all sessions); repeat for several. A certificate's name is "
          "its first subject alternative name, or without any its common name; the log has it "
          "with x509: in front"),
      switch_flag("--insecure-public", security, &Options::insecure_public,
                  "Allow plain text on an address other machines reach: prompts and output can be "
                  "read and changed on their way"),
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
      bytes_flag("--identity-memory", sessions, &Sessions::bytes_per_owner, 0, kMostBytes,
                 "State of its sessions and calls, in bytes"),
      number_flag("--identity-tokens-per-second", identity, &Limits::tokens_per_second, 0, kMost,
                  "Prompt and new tokens, paid for as they are read and produced: without anything "
                  "saved up the identity's calls pause, and share this rate from then on. A call "
                  "that would wait for more than ten seconds to begin is refused"),
      number_flag("--identity-token-burst", identity, &Limits::token_burst, 0, kMost,
                  "Tokens saved up at most; 0: ten seconds' worth"),
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

ServerOptions::DurableOptions& durable(ServerOptions& options) { return options.durable; }
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
      path_flag("--session-store", durable, &Options::store, "DIR",
                "Directory, of this server alone, in which sessions outlive it: after an end, a "
                "crash or a loss of power they are there under their ids when a server begins on "
                "it. Made where it is not there, readable by its user alone. Or a store that "
                "servers share: redis://HOST:PORT, of a Redis or Valkey server, or of some of a "
                "cluster's with commas between; rediss:// with TLS. Without it sessions are in "
                "memory"),
      choice_flag<Options, Level>(
          "--session-durability", durable, &Options::durability, "LEVEL",
          {{"none", Level(Durability::kNone)},
           {"call", Level(Durability::kCall)},
           {"input", Level(Durability::kInput)},
           {"token", Level(Durability::kToken)}},
          "What of a session outlives the server, unless its maker says: none; call: calls whose "
          "end was seen; input: also a call in progress, which repeated by its call_id gives the "
          "same tokens and continues; token: the same, and each token is on the disk before it is "
          "sent. Default: input with --session-store, else none"),
      duration_flag("--session-commit-interval", durable, &Options::commit_interval_ms,
                    milliseconds(0),
                    "What calls have to write is gathered for this long into one commit where "
                    "several write; so much later come tokens at the level token, and up to four "
                    "times as much where more than 16 streams write"),
      number_flag(
          "--session-park-tokens", durable, &Options::park_tokens, 0, 1'000'000'000,
          "The state is stored, too, during a call and at its end, if so many tokens have "
          "come since the last time; at its end a quarter of them where memory is short, and "
          "when the server ends. A session that is not in memory reads the others again, at "
          "the speed of a prompt. 0: 1024, but at the end of each call where a state has 1 MiB "
          "or more"),
      bytes_flag("--session-store-size", durable, &Options::store_size_bytes, 1 << 20, kMostBytes,
                 "Room on the disk for states of each size; where it is full, sessions read their "
                 "tokens again"),
      number_flag("--session-store-threads", durable, &Options::store_threads, 1, 64,
                  "Threads that wait for the disk: calls that name a session begin on them"),
      number_flag("--session-load-queue", durable, &Options::load_queue, 1, 1'000'000,
                  "Calls that wait for one of them; one more is refused"),
      duration_flag("--session-expire", durable, &Options::expire, std::chrono::seconds(1),
                    "A stored session that is unused for this long is removed, unless its maker "
                    "says"),
      switch_flag(
          "--chat-spill", durable, &Options::chat_spill,
          "Conversations of clients that send their whole history are stored, too: the state after "
          "the last turn, with the tokens that lead to it, so that the next turn reads itself "
          "alone "
          "after a restart. Needs --session-store"),
      duration_flag("--chat-spill-idle", durable, &Options::chat_spill_idle,
                    std::chrono::seconds(0),
                    "A turn is stored so long after it ended; before, where memory is needed or "
                    "the server ends; 0: when it ends"),
      duration_flag("--chat-spill-expire", durable, &Options::chat_spill_expire,
                    std::chrono::seconds(1), "A stored turn is removed after this time"),
      choice_flag<Options, bool>(
          "--session-numerics", durable, &Options::takes_other_numerics, "WHAT",
          {{"warn", true}, {"strict", false}},
          "Stored sessions that were computed with other numerics. warn: they continue, the log "
          "and Session.numerics_changed_at say so; strict: calls on them are refused"),
      duration_flag("--store-broken-timeout", durable, &Options::store_broken_timeout_ms,
                    milliseconds(0),
                    "Time after a failed write to the store until /healthz and v2/health/live "
                    "fail, so that the server is restarted: only a start opens the store again. "
                    "Readiness fails at once. 0: never"),
      text_flag("--drain-handover", durable, &Options::drain_handover_ms, "DURATION",
                parse_handover, show_handover,
                "After SIGTERM calls on such sessions that have a call_id may run for this long; "
                "then they end with CALL_MOVED, and resume where they are repeated: on another "
                "server of the store, or on this one's successor. off: only at the end of "
                "--drain-timeout. Default: 5s with a store that servers share, else off"),
  };
}

std::vector<Flag> shared_store_flags() {
  using Options = ServerOptions::SharedStoreOptions;
  return {
      duration_flag("--session-lease", shared, &Options::lease_ms, std::chrono::seconds(2),
                    "For so long at most a session stays with a server that is gone while a call "
                    "of it ran; a call whose server does not reach the store for this long, less "
                    "a second, ends. Above cluster-node-timeout"),
      text_flag(
          "--session-store-wait-replicas", shared, &Options::wait_replicas, "N",
          [](const std::string& text) {
            return std::optional<int>(static_cast<int>(parse_whole_number(text, 0, 16)));
          },
          [](const std::optional<int>& replicas) {
            return replicas ? std::to_string(*replicas) : std::string();
          },
          "What is written counts as stored when so many replicas of its Redis master have it. "
          "Default: 1 where there are replicas"),
      duration_flag("--session-store-wait", shared, &Options::wait_ms, milliseconds(1),
                    "For so long these are waited for; then it is written again"),
      path_flag("--session-store-credentials", shared, &Options::credentials, "FILE",
                "How the store knows this server: a line with the name of a user and a line with "
                "its password; of the password alone where it is that of the default user"),
      path_flag("--session-store-ca", shared, &Options::ca, "FILE",
                "Certificates of who signed those of a rediss:// store, PEM. Default: the "
                "system's"),
      path_flag("--session-store-cert", shared, &Options::cert, "FILE",
                "This server's certificate for a rediss:// store that asks for one, PEM"),
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
  Flag flag =
      number_flag("--workers", scheduling, &Scheduler::Options::workers, 1, 1024,
                  "Worker threads; the default is one per processor that this process, or its "
                  "container, has time on");
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
      "Sequences a worker decodes together, and rows of its step. auto: 64 in f32; in bf16 and "
      "int8 as many, 16 to 64, as keep the states of all workers in a quarter of the last cache; a "
      "step that reads nothing but prompts then has up to 64 rows in f32 and 128 else");
}

}  // namespace

std::vector<Flag> scheduling_flags() {
  using Options = Scheduler::Options;
  return {
      workers_flag(),
      batch_rows_flag(),
      number_flag("--prefill-rows", scheduling, &Options::prefill_rows_per_step, 1, 4096,
                  "Rows of a step that read prompts while others decode; at most "
                  "--max-batch-rows"),
      number_flag("--max-queued-requests", scheduling, &Options::max_queued_requests, 1, 1'000'000,
                  "Requests accepted but not yet in a batch; one more is refused"),
      bytes_flag("--max-queued-bytes", scheduling, &Options::max_queued_bytes, 1, kMostBytes,
                 "Memory held by those requests, the messages they came in included; one more is "
                 "refused, but for the only one",
                 "no request fits into 0 bytes"),
      choice_flag<Options, Speculation>(
          "--speculation", scheduling, &Options::speculation, "MODE",
          {{"off", Speculation::kOff}, {"auto", Speculation::kAuto}, {"on", Speculation::kOn}},
          "Speculative decoding: feeding draft tokens in the same step, which makes few streams "
          "faster and changes no token: off; auto: where the draft is likely and the step has few "
          "rows; on: every draft, for tests"),
      number_flag(
          "--speculation-rows", scheduling, &Options::speculation_rows, 1, 1024,
          "Rows of a step up to which draft tokens are added to it; at most as many as a step "
          "that reads nothing but prompts has"),
      number_or_auto(
          "--step-threads", &Options::step_threads, 1, 32,
          "Threads that share a step while other workers have nothing to do, which makes "
          "few streams faster and changes no token. auto: as many as save a tenth of its "
          "time with each doubling, as tried while serving, and no more than there are "
          "processors"),
  };
}

std::vector<Flag> session_flags() {
  using Options = SessionManager::Options;
  return {
      number_flag("--max-sessions", session_options, &Options::max_sessions, 0, 100'000'000,
                  "Sessions at a time; 0: only --session-memory limits them"),
      bytes_flag("--session-memory", session_options, &Options::session_memory_bytes, 1, kMostBytes,
                 "Memory for sessions and running calls, in bytes (suffixes as above): their "
                 "states, histories and records; while a call runs, also 40 KB a sample for draft "
                 "tokens, and the tokens that may wait for a slow client, at most --outbox-tokens "
                 "of 64 bytes, and 8 more for each of top_log2_probs. Calls on sessions are "
                 "never refused for want of this memory",
                 "no session fits into 0 bytes"),
      duration_flag("--session-idle-timeout", session_options, &Options::idle_timeout,
                    milliseconds(0), "A session unused for this long is evicted; 0: never"),
      number_flag(
          "--session-history-tokens", session_options, &Options::history_tokens, 1, 1'000'000'000,
          "Tokens of a session that are kept, in addition to its state, to go back to and to "
          "read: 1 to 4 bytes each, and a quarter; a session can ask for fewer"),
      bytes_flag("--prefix-cache-memory", prefix_options, &PrefixCache::Options::memory_bytes, 0,
                 kMostBytes,
                 "Memory for states after earlier prompts, so that a prompt that begins as "
                 "an earlier one of the same caller need not be read from its beginning; of what "
                 "--session-memory has left: sessions and calls come first. 0: every prompt is "
                 "read"),
      path_flag(
          "--initial-states", initial_states, &ServerOptions::InitialStates::directory, "DIR",
          "Directory of snapshots (`lintel session snapshot`), each a state for all callers to "
          "begin with, named as its file without the ending: `lintel generate "
          "--initial-state NAME`. Read at the start, for models that are loaded then; one "
          "that is damaged or of other weights keeps the server from starting"),
      switch_flag("--accept-other-numerics", initial_states,
                  &ServerOptions::InitialStates::accept_other_numerics,
                  "Also states of --initial-states that machines made which compute other bits"),
  };
}

std::vector<Flag> streaming_flags() {
  using Options = StreamingOptions;
  return {
      duration_flag("--chunk-interval", streaming, &Options::chunk_interval_ms, milliseconds(0),
                    "Tokens of a stream are gathered for this long into one message, and from four "
                    "streams a worker on for longer, half of a worker's streams times and 16 times "
                    "at most; 0: every step is a message"),
      number_flag("--outbox-tokens", streaming, &Options::outbox_tokens, 1, 10'000'000,
                  "A stream whose reader leaves more tokens than this unread is paused"),
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
      {"Limits of one identity (a token's or certificate's name; else all callers together), 0: "
       "none",
       identity_flags()},
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
