// SPDX-License-Identifier: Apache-2.0
#include "server/config/flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>

#include "model/config/attention_spec.h"
#include "model/core/step_thread_pool.h"
#include "tools/describe/suggest.h"

namespace lintel {
namespace {

using namespace std::chrono_literals;

// "2GiB - 1" of what is one byte less.
std::string bytes_bound(std::int64_t bytes) {
  const auto n = static_cast<std::uint64_t>(bytes);
  return n % 1024 == 1023 ? format_bytes(n + 1) + " - 1" : format_bytes(n);
}

std::string bytes_range(std::int64_t low, std::int64_t high) {
  return bytes_bound(low) + " to " + bytes_bound(high);
}

// parse_bytes within the flag's bounds.
std::int64_t parse_bytes_of(const Flag& flag, const std::string& text) {
  const auto bytes = static_cast<std::int64_t>(parse_bytes(text));
  if (bytes >= flag.low && bytes <= flag.high) return bytes;
  if (!flag.refusal.empty()) throw UsageError(flag.refusal);
  throw UsageError("'" + text + "' is not from " + bytes_range(flag.low, flag.high));
}

// parse_duration from the flag's lowest on, in whole seconds or not.
std::chrono::milliseconds parse_duration_of(const Flag& flag, const std::string& text,
                                            bool whole_seconds) {
  const std::chrono::milliseconds parsed = parse_duration(text);
  if (parsed.count() < flag.low || (whole_seconds && parsed.count() % 1000 != 0)) {
    throw UsageError("'" + text + "' is not at least " +
                     format_duration(std::chrono::milliseconds(flag.low)) +
                     (whole_seconds ? " and whole seconds" : ""));
  }
  return parsed;
}

// The index of `word`. Throws UsageError, with the word that may have been meant.
std::size_t index_of_word(const std::string& word, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string list;
  for (const std::string& known : words) list += (list.empty() ? "" : ", ") + known;
  throw UsageError("'" + word + "' is not one of: " + list + describe::did_you_mean(word, words));
}

template <typename T>
struct Choice {
  const char* word;
  T meant;
};

constexpr Choice<std::optional<WeightType>> kWeightTypes[] = {{"auto", std::nullopt},
                                                              {"f32", WeightType::kF32},
                                                              {"bf16", WeightType::kBf16},
                                                              {"int8", WeightType::kInt8},
                                                              {"int4", WeightType::kInt4},
                                                              {"int4-ffn", WeightType::kInt4Ffn},
                                                              {"int4-all", WeightType::kInt4All}};
constexpr Choice<std::optional<KvType>> kKvTypes[] = {{"auto", std::nullopt},
                                                      {"f32", KvType::kF32},
                                                      {"bf16", KvType::kBf16},
                                                      {"int8", KvType::kInt8}};
constexpr Choice<KernelChoice> kKernels[] = {
    {"auto", KernelChoice::kAuto}, {"own", KernelChoice::kOwn}, {"onednn", KernelChoice::kOneDnn}};
constexpr Choice<ChatReasoningField> kReasoningFields[] = {
    {"reasoning_content", ChatReasoningField::kReasoningContent},
    {"reasoning", ChatReasoningField::kReasoning},
    {"both", ChatReasoningField::kBoth}};
constexpr Choice<bool> kUnknownMembers[] = {{"ignore", false}, {"refuse", true}};
constexpr Choice<LateSystem> kLateSystems[] = {
    {"user", LateSystem::kUser}, {"merge", LateSystem::kMerge}, {"refuse", LateSystem::kRefuse}};
constexpr Choice<Speculation> kSpeculations[] = {
    {"off", Speculation::kOff}, {"auto", Speculation::kAuto}, {"on", Speculation::kOn}};
constexpr Choice<std::optional<Durability>> kDurabilities[] = {{"none", Durability::kNone},
                                                               {"call", Durability::kCall},
                                                               {"input", Durability::kInput},
                                                               {"token", Durability::kToken}};
constexpr Choice<bool> kNumerics[] = {{"warn", true}, {"strict", false}};
constexpr Choice<bool> kLogFormats[] = {{"text", false}, {"json", true}};
// "warning" is what `lintel admin log-level` prints.
constexpr Choice<const char*> kLogLevels[] = {
    {"trace", "trace"},     {"debug", "debug"}, {"info", "info"},         {"warn", "warn"},
    {"warning", "warning"}, {"error", "error"}, {"critical", "critical"}, {"off", "off"}};

const std::string& any_text(const std::string& text) { return text; }

std::filesystem::path parse_path(const std::string& text) {
  if (text.empty()) throw UsageError("is empty");
  return text;
}

std::string show_path(const std::filesystem::path& path) { return path.string(); }

std::string show_address(const ListenAddress& address) { return address.to_string(address.port); }

std::string show_optional_address(const std::optional<ListenAddress>& address) {
  return address ? show_address(*address) : "";
}

// HTTP's address; nothing: no HTTP.
std::optional<ListenAddress> parse_http_address(const std::string& text) {
  if (text == "off") return std::nullopt;
  return parse_listen_address(text);
}

ListenAddress parse_metrics_address(const std::string& text) {
  const ListenAddress address = parse_listen_address(text);
  if (!address.unix_path.empty()) throw UsageError("'" + text + "' is not HOST:PORT");
  if (address.host.find(':') != std::string::npos) {
    throw UsageError("'" + text + "': metrics are served over IPv4 only");
  }
  return address;
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

int parse_replicas(const std::string& text) {
  return static_cast<int>(parse_whole_number(text, 0, 16));
}

std::string show_replicas(const std::optional<int>& replicas) {
  return replicas ? std::to_string(*replicas) : "";
}

std::chrono::milliseconds parse_handover(const std::string& text) {
  if (text == "off") return ServerOptions::DurableOptions::kNever;
  return parse_duration(text);
}

std::string show_handover(const std::optional<std::chrono::milliseconds>& after) {
  if (!after) return "";
  return *after == ServerOptions::DurableOptions::kNever ? "off" : format_duration(*after);
}

// Appends rows whose members are those of one ServerOptions. Only two function pointers know the
// type of a member, one pair for each type and not for each row.
class Table {
 public:
  explicit Table(std::vector<Flag>& rows) : rows_(rows) {}

  // The heading of the rows that follow.
  void begin_group(const char* heading) { group_ = heading; }

  // A text that kParse reads and kShow shows.
  template <auto kParse, auto kShow, typename T>
  Flag& text(const char* name, T& member, const char* value, const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<T*>(flag.member) = kParse(text);
    };
    const auto show = [](const Flag& flag) -> std::string {
      return kShow(*static_cast<const T*>(flag.member));
    };
    return add(Flag::Type::kText, name, &member, value, help, set, show);
  }

  // A path that is not empty. `value`: "FILE" or "DIR".
  Flag& path(const char* name, std::filesystem::path& member, const char* value, const char* help) {
    return text<parse_path, show_path>(name, member, value, help);
  }

  // A whole number from low to high.
  template <typename T>
  Flag& number(const char* name, T& member, std::int64_t low, std::int64_t high, const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<T*>(flag.member) = static_cast<T>(parse_whole_number(text, flag.low, flag.high));
    };
    const auto show = [](const Flag& flag) {
      return std::to_string(*static_cast<const T*>(flag.member));
    };
    return bounded(add(Flag::Type::kNumber, name, &member, "N", help, set, show), low, high);
  }

  // A number from low to high, or "auto", which is held as 0.
  Flag& number_or_auto(const char* name, int& member, std::int64_t low, std::int64_t high,
                       const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<int*>(flag.member) =
          text == "auto" ? 0 : static_cast<int>(parse_whole_number(text, flag.low, flag.high));
    };
    const auto show = [](const Flag& flag) {
      const int number = *static_cast<const int*>(flag.member);
      return number == 0 ? "auto" : std::to_string(number);
    };
    return bounded(add(Flag::Type::kNumber, name, &member, "N", help, set, show), low, high);
  }

  // Bytes from low to high, which the error names; `refusal`: what it says instead.
  template <typename T>
  Flag& bytes(const char* name, T& member, std::int64_t low, std::int64_t high, const char* help,
              const char* refusal = "") {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<T*>(flag.member) = static_cast<T>(parse_bytes_of(flag, text));
    };
    const auto show = [](const Flag& flag) {
      return format_bytes(static_cast<std::uint64_t>(*static_cast<const T*>(flag.member)));
    };
    Flag& flag = add(Flag::Type::kBytes, name, &member, "BYTES", help, set, show);
    flag.refusal = refusal;
    return bounded(flag, low, high);
  }

  // The same, or "auto", which is held as kAutoBytes.
  template <typename T>
  Flag& bytes_or_auto(const char* name, T& member, std::int64_t low, std::int64_t high,
                      const char* help, const char* refusal = "") {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<T*>(flag.member) = static_cast<T>(
          text == "auto" ? static_cast<std::int64_t>(kAutoBytes) : parse_bytes_of(flag, text));
    };
    const auto show = [](const Flag& flag) -> std::string {
      const T bytes = *static_cast<const T*>(flag.member);
      if (bytes == static_cast<T>(kAutoBytes)) return "auto";
      return format_bytes(static_cast<std::uint64_t>(bytes));
    };
    Flag& flag = add(Flag::Type::kBytes, name, &member, "BYTES", help, set, show);
    flag.refusal = refusal;
    return bounded(flag, low, high);
  }

  // A flag of at least `low`, in whole seconds if the member counts these.
  template <typename Duration>
  Flag& duration(const char* name, Duration& member, std::chrono::milliseconds low,
                 const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      constexpr bool kSeconds = std::is_same_v<Duration, std::chrono::seconds>;
      *static_cast<Duration*>(flag.member) =
          std::chrono::duration_cast<Duration>(parse_duration_of(flag, text, kSeconds));
    };
    const auto show = [](const Flag& flag) {
      return format_duration(*static_cast<const Duration*>(flag.member));
    };
    return bounded(add(Flag::Type::kDuration, name, &member, "DURATION", help, set, show),
                   low.count(), std::chrono::milliseconds(kLongestDuration).count());
  }

  // One of kChoices, by its word.
  template <const auto& kChoices, typename T>
  Flag& choice(const char* name, T& member, const char* value, const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<T*>(flag.member) = kChoices[index_of_word(text, flag.words)].meant;
    };
    const auto show = [](const Flag& flag) -> std::string {
      for (const auto& choice : kChoices) {
        if (choice.meant == *static_cast<const T*>(flag.member)) return choice.word;
      }
      return "";
    };
    Flag& flag = add(Flag::Type::kChoice, name, &member, value, help, set, show);
    for (const auto& choice : kChoices) flag.words.emplace_back(choice.word);
    return flag;
  }

  // A flag given several times, or as a list in a configuration file; kParse reads an element.
  template <auto kParse, typename T>
  Flag& list(const char* name, std::vector<T>& member, const char* value, const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      static_cast<std::vector<T>*>(flag.member)->push_back(kParse(text));
    };
    return add(Flag::Type::kList, name, &member, value, help, set, show_nothing);
  }

  // A flag without a value; `set` is given "true" or "false".
  Flag& toggle(const char* name, bool& member, const char* help) {
    const auto set = [](const Flag& flag, const std::string& text) {
      *static_cast<bool*>(flag.member) = text == "true";
    };
    return add(Flag::Type::kSwitch, name, &member, "", help, set, show_nothing);
  }

 private:
  static std::string show_nothing(const Flag&) { return ""; }

  static Flag& bounded(Flag& flag, std::int64_t low, std::int64_t high) {
    flag.low = low;
    flag.high = high;
    return flag;
  }

  Flag& add(Flag::Type type, const char* name, void* member, const char* value, const char* help,
            Flag::Set set, Flag::Show show) {
    Flag& flag = rows_.emplace_back();
    flag.type = type;
    flag.name = name;
    flag.group = group_;
    flag.value = value;
    flag.help = help;
    flag.member = member;
    flag.set_member = set;
    flag.show_member = show;
    return flag;
  }

  std::vector<Flag>& rows_;
  const char* group_ = "";
};

void add_model_flags(Table& flags, ServerOptions& options) {
  ModelOptions& models = options.models;
  flags.begin_group("Models");
  flags.list<parse_model_directory>(
      "--model", models.directories, "[NAME=]PATH",
      "Model directory or GGUF file to serve; repeat for several. NAME, which may be "
      "ORG/NAME, defaults to the last component of PATH. Without --model, --models, "
      "--model-repository and --config "
      "the small models are served");
  flags.path("--model-repository", models.repository, "DIR",
             "Directory of models that are loaded, reloaded and unloaded at run time (`lintel "
             "model load NAME`): DIR/NAME/, or DIR/NAME/1/, DIR/NAME/2/ ... for versions, of "
             "which the highest is used");
  flags.path("--models", models.on_request, "DIR",
             "Directory of models that requests load, in place of --model-repository: DIR/NAME/ "
             "or DIR/NAME/1/ as there, DIR/NAME.gguf, or a hub's cache (`lintel pull`). Models "
             "of --model are unloaded and loaded likewise");
  flags.duration("--model-idle-unload", models.idle_unload_ms, 0ms,
                 "With --models a model is unloaded that no call has used for this long, unless "
                 "it has sessions in memory alone; 0: never");
  flags.list<any_text>(
      "--load-model", models.load, "NAME",
      "Model of --models or --model-repository to load at startup; repeat for several, '*' "
      "for all");
  flags.list<parse_model_alias>(
      "--model-alias", options.model_aliases, "PATTERN=NAME",
      "Names of requests that mean the model NAME where no model has them: PATTERN, in which each "
      "'*' stands for any text, as in 'claude-*=qwen35'; repeat for several, of which the first "
      "that fits counts");
  flags.list<parse_adapter_directory>(
      "--adapter", models.adapters, "[MODEL:]NAME=DIR",
      "LoRA adapter in PEFT's format, in addition to those in adapters/NAME/ of the "
      "model's directory; repeat for several. MODEL is optional if one model is served. "
      "Requests name it: `lintel generate --adapter NAME`");
  flags.list<parse_chat_template_file>(
      "--chat-template", models.chat_templates, "[MODEL=]FILE",
      "Jinja file that replaces a model's own chat template; repeat for several models. "
      "MODEL is optional if one model is served");
  flags.list<parse_tool_dialect>(
      "--tool-dialect", models.tool_dialects, "[MODEL=]NAME",
      "How a model writes tool calls: none, hermes, xml or pythonic. Defaults to what "
      "the chat template shows");
  flags.choice<kLateSystems>(
      "--late-system", options.late_system, "RULE",
      "A system or developer message after the first turns, where the chat template does not show "
      "it in its place: user: it stays there as a user's message, or as a part of a tool's result; "
      "merge: it joins the first system message, and all that follows is read again; refuse: the "
      "request is refused, in the template's words where it has some");
  flags.bytes_or_auto(
      "--model-memory", models.memory_bytes, 0, kMostBytes,
      "Memory for the weights and tables of all models and adapters, and for loading "
      "them; computed from file headers before weights are read. With --models those unused "
      "for longest are unloaded for others. 0: no limit. auto: with --models and "
      "--model-repository half of what the start leaves of --memory-limit, else no limit");
  flags.choice<kWeightTypes>(
      "--weight-type", models.weight_type, "TYPE",
      "Type of the matrices in memory and in products. int8: a scale for each output; int4, of "
      "checkpoints: for each 32 inputs, the head in int8; int4-ffn: int4 in feed-forward "
      "layers, "
      "else int8; int4-all: in the head, too. Predictor, norms and states stay in f32. auto: "
      "the fastest type that loses at most --weight-type-loss bits a token against f32, "
      "measured at load (shown by `lintel model get`); f32 for small models, int8 for large "
      "ones without --weight-type-text, with it bf16 if no type loses as little; the stored "
      "types of a GGUF file");
  flags.path("--weight-type-text", models.weight_type_text, "FILE",
             "Text whose first 512 tokens --weight-type auto measures on; checkpoints then may "
             "be served in 4 bits. A second or more for each type and 100 million weights");
  flags.text<parse_bits, show_bits>("--weight-type-loss", models.weight_type_loss, "BITS",
                                    "The most that --weight-type auto may lose");
  flags.choice<kKvTypes>(
      "--kv-type", models.kv_type, "TYPE",
      "Type of cached keys and values in the softmax layers of checkpoints (Qwen3.5, hybrids): "
      "f32, bf16, or int8 with a scale for each position and head. auto: f32 where the weights are "
      "served in f32, else bf16. `lintel model get` shows type and bytes a token. Stored sessions "
      "and snapshots of another type continue, as those of other numerics: their keys and values "
      "are converted. Models without such a cache log a warning where bf16 or int8 is asked for");
  flags.number("--context", models.context, 0, 1'000'000'000,
               "Most tokens of a sequence, prompt and answer, where a model can hold more: fewer "
               "take less of --session-memory. Changes no bit and no fingerprint; images keep "
               "their size. 0: what each model can hold");
  flags.choice<kKernels>(
      "--kernels", models.kernels, "WHOSE",
      "GEMM backend: Lintel's own kernels, or oneDNN where it is batch invariant (else own). "
      "auto: the faster one for each weight type, by a table. The bits of int8 are equal, "
      "those of f32 and bf16 are not. The log and `lintel model get` show the choice");
  flags
      .text<parse_attention, show_attention>(
          "--attention", models.attention, "SPEC",
          "Runs the weights with another attention than they were trained for, to compare speed: "
          "TYPE or TYPE:KEY=VALUE,KEY=VALUE with the keys of config.json, e.g. softmax:scale=0.2 "
          "or lsh:rounds=4,bits=32,chunk_size=29,seed=7 (seed: of tensors that the weights lack). "
          "recompute=true keeps no state and runs the whole prefix for every token. "
          "`lintel-convert --kinds` explains the keys. Types and keys: ")
      .help += kinds_help();
  flags.toggle("--strict-config", models.strict_config,
               "Refuses checkpoints with a key in config.json, or of the architecture in a GGUF "
               "file, that is not known. Without it such a key is a warning in the log and in "
               "`lintel model get`, and the model is served without it");
  flags.toggle("--print-numerics", options.print_numerics,
               "Prints each model's name, version, numerics hash and kernels, and exits. "
               "Machines with equal hashes continue each other's sessions bit for bit");
  flags.toggle("--check-config", options.check_config,
               "Checks flags, configuration file and the files that they name as a start does, and "
               "exits: with 0, or with 2 and the error. Opens no port and loads no model");
}

void add_network_flags(Table& flags, ServerOptions& options) {
  ConnectionOptions& connections = options.connections;
  flags.begin_group("Network");
  flags.text<parse_listen_address, show_address>(
      "--listen", options.listen, "ADDRESS",
      "HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks a free one");
  flags
      .text<parse_replica_id, any_text>("--replica-id", options.replica_id, "ID",
                                        "Name of this server among those that share an address or "
                                        "session storage: 1 to 64 letters, "
                                        "digits, '.', '_' and '-'. Every answer has it, as "
                                        "lintel-replica. Defaults to the host's "
                                        "name; servers on one host need different ones")
      .default_of_machine = true;
  flags.bytes("--max-message-size", connections.max_message_bytes, 4096, 0x7fffffff,
              "Largest request message, in bytes");
  flags.bytes_or_auto("--connection-memory", connections.memory_bytes, 16 << 20,
                      std::int64_t{1} << 40,
                      "Memory of gRPC for all connections, half-sent messages included, in bytes; "
                      "beyond it calls are ended. auto: a 16th of --memory-limit, at most 256MiB");
  flags.duration("--keepalive-time", connections.keepalive_time_ms, 1000ms,
                 "A connection silent for this long is pinged");
  flags.duration("--keepalive-timeout", connections.keepalive_timeout_ms, 100ms,
                 "A ping unanswered for this long closes the connection and cancels its calls");
  flags.bytes("--max-metadata-size", connections.max_metadata_bytes, 1024, 1 << 20,
              "Largest headers of a call, in bytes");
  flags.number("--max-connection-streams", connections.max_streams, 1, 1'000'000,
               "Calls at a time on one connection; more wait at the client");
  flags.duration(
      "--max-connection-age", connections.max_age_ms, 0ms,
      "A connection this old, of HTTP too, takes no new calls; clients open another; 0: never");
  flags.duration("--max-connection-age-grace", connections.max_age_grace_ms, 0ms,
                 "Streams of a connection past its age may run for this long; 0: to their end");
  flags.duration("--drain-timeout", options.models.drain_timeout_ms, 0ms,
                 "Running streams have this long to finish after SIGTERM");
}

void add_http_flags(Table& flags, ServerOptions& options) {
  HttpOptions& http = options.http;
  flags.begin_group("HTTP");
  flags.text<parse_http_address, show_optional_address>(
      "--http-listen", http.listen, "ADDRESS",
      "HTTP/1.1, with the web page at /, on HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks a "
      "free one, off is no HTTP. TLS, tokens and plain text as for --listen. Defaults to "
      "127.0.0.1:8080 if --listen is a port on loopback, else to off; where that default is "
      "taken, the server says so and serves without HTTP");
  flags.list<parse_origin>(
      "--http-cors-origin", http.cors_origins, "ORIGIN",
      "Web pages of this origin may call, e.g. https://example.org; * for all; repeat "
      "for several. Pages of the server itself always may");
  flags.list<parse_host>(
      "--http-allowed-host", http.allowed_hosts, "HOST",
      "On a loopback address: another Host that requests may name, HOST or HOST:PORT, e.g. a "
      "proxy's; repeat for several. Names of this machine (localhost, 127.0.0.1, [::1]) and "
      "hosts of --http-cors-origin are always allowed, others refused (DNS rebinding)");
  flags.number("--http-threads", http.threads, 1, 256,
               "Threads that read, write and translate for all connections");
  flags.number("--http-max-connections", http.max_connections, 1, 1'000'000,
               "Connections at a time; more are answered with 503");
  flags.number("--http-max-client-connections", http.max_client_connections, 1, 1'000'000,
               "The same for one client address; clients of a proxy share its address");
  flags.bytes("--http-max-header-size", http.max_header_bytes, 1024, 1 << 20,
              "Largest first line and headers of a request, in bytes");
  flags.bytes_or_auto("--http-memory", http.memory_bytes, 1 << 20, std::int64_t{1} << 40,
                      "Bodies of all requests that are being read and parsed, in bytes; beyond it "
                      "requests are answered with 503. auto: a 32nd of --memory-limit, at most "
                      "64MiB");
  flags.duration("--http-header-timeout", http.header_timeout_ms, 10ms,
                 "Time to receive a request's headers; then it is refused");
  flags.duration("--http-body-timeout", http.body_timeout_ms, 10ms,
                 "Time to receive a request's body; then it is refused");
  flags.duration("--http-idle-timeout", http.idle_timeout_ms, 10ms,
                 "A connection without a request for this long is closed");
  flags.duration("--http-write-timeout", http.write_timeout_ms, 10ms,
                 "A client that reads nothing of its answer for this long is disconnected and "
                 "its call cancelled");
  flags.choice<kReasoningFields>(
      "--chat-reasoning-field", http.chat_reasoning_field, "NAME",
      "Member of messages and deltas of /v1/chat/completions that has the reasoning; clients "
      "look for one or the other");
}

void add_security_flags(Table& flags, ServerOptions& options) {
  SecurityOptions& security = options.security;
  flags.begin_group("Security");
  flags.path("--tls-cert", security.tls_cert, "FILE",
             "Serve TLS with this PEM certificate, followed by its intermediates, for the names "
             "and addresses in its subject alternative names. Reloaded when it changes");
  flags.path("--tls-key", security.tls_key, "FILE", "Its PEM private key, without a password");
  flags.path("--tls-client-ca", security.tls_client_ca, "FILE",
             "Mutual TLS: clients need a certificate signed by one of these PEM authorities");
  flags.path("--auth-tokens", security.auth_tokens, "FILE",
             "Calls need a bearer token of this file, except health. A line each, as `lintel "
             "token new` writes it: NAME ROLES sha256:HEX. Reloaded when it changes");
  flags.list<any_text>(
      "--admin-certificate", security.admin_certificates, "NAME",
      "In mutual TLS without --auth-tokens: clients of this name have the role admin; repeat "
      "for several. A certificate's name is its first subject alternative name, else its "
      "common name; the log prefixes it with x509:");
  flags.toggle("--insecure-public", security.insecure_public,
               "Allow plain text on a public address: others on the network can read and change "
               "prompts and output");
}

void add_identity_flags(Table& flags, ServerOptions& options) {
  Quotas::Limits& identity = options.identity;
  constexpr std::int64_t kMost = 1'000'000'000'000;
  flags.begin_group("Limits for each name of a token or certificate, 0: none");
  flags.number("--identity-max-streams", identity.max_streams, 0, 1'000'000,
               "Generate and Score calls at a time");
  flags.number("--identity-max-sessions", options.sessions.max_sessions_per_owner, 0, 100'000'000,
               "Sessions at a time");
  flags.bytes("--identity-memory", options.sessions.bytes_per_owner, 0, kMostBytes,
              "State of its sessions and calls, in bytes; and as much again for what its requests "
              "hold of --request-memory");
  flags.number(
      "--identity-tokens-per-second", identity.tokens_per_second, 0, kMost,
      "Prompt and new tokens, charged as they are read and produced. Calls over the rate pause "
      "and share it; a call that would wait more than ten seconds to start is refused");
  flags.number("--identity-token-burst", identity.token_burst, 0, kMost,
               "Unused tokens that accumulate; 0: ten seconds' worth");
  flags.bytes("--identity-stored", options.durable.identity_stored_bytes, 0, kMostBytes,
              "Its stored responses: their JSON and 512 bytes for each. Checked as a response "
              "begins, whose answer is always stored. Not with redis://");
}

void add_scheduling_flags(Table& flags, ServerOptions& options) {
  Scheduler::Options& scheduling = options.models.scheduling;
  flags.begin_group("Scheduling, for each model");
  flags
      .number("--workers", scheduling.workers, 1, 1024,
              "Worker threads; defaults to one per processor available to the process or container")
      .default_of_machine = true;
  flags.number_or_auto(
      "--max-batch-rows", scheduling.max_batch_rows, 1, 4096,
      "Sequences that a worker decodes together, and rows of its step. auto: 64 in f32; in bf16 "
      "and int8 16 to 64, so that the states of all workers fit a quarter of the last cache; steps "
      "of prompts alone have up to 64 rows in f32, else 128");
  flags.number_or_auto(
      "--prefill-rows", scheduling.prefill_rows_per_step, 1, 4096,
      "Prompt rows of a step that also decodes; at most --max-batch-rows. auto: as many as leave "
      "answers 0.7 of their speed, measured while serving");
  flags.number("--max-queued-requests", scheduling.max_queued_requests, 1, 1'000'000,
               "Requests accepted but not yet in a batch; one more is refused");
  flags.bytes_or_auto("--max-queued-bytes", scheduling.max_queued_bytes, 1, kMostBytes,
                      "Memory of those requests and their messages; one more is refused, unless "
                      "the queue is empty. auto: a 16th of --memory-limit, divided among the "
                      "models of the start, at most 256MiB each",
                      "no request fits into 0 bytes");
  flags.choice<kSpeculations>(
      "--speculation", scheduling.speculation, "MODE",
      "Speculative decoding: draft tokens in the same step make few streams faster and change "
      "no token. off; auto: where a draft is likely and the step has few rows; on: every "
      "draft, for tests");
  flags.number("--speculation-rows", scheduling.speculation_rows, 1, 1024,
               "Rows of a step up to which draft tokens are added; at most those of a step of "
               "prompts alone");
  flags.number_or_auto("--step-threads", scheduling.step_threads, 1, StepThreadPool::kMostThreads,
                       "Threads that share a step while other workers are idle: few streams get "
                       "faster, no token changes. auto: as long as each doubling saves a tenth of "
                       "the step's time, measured while serving, at most one per processor");
}

void add_session_flags(Table& flags, ServerOptions& options) {
  SessionManager::Options& sessions = options.sessions;
  flags.begin_group("Sessions");
  flags.bytes_or_auto(
      "--memory-limit", options.memory_limit_bytes, 64 << 20, kMostBytes,
      "Memory of the server, of which at most 0.9 is planned for: weights, buffers, requests, "
      "connections, sessions. The log has the plan. auto: the limit of its control group (cgroup "
      "v2 or v1), else the memory that is available");
  flags.bytes_or_auto(
      "--request-memory", options.request_memory_bytes, 1 << 20, kMostBytes,
      "Memory for what requests hold from when they are parsed until they are answered, in bytes: "
      "bodies, prompts, answers that are not streamed, events that are kept. Each is admitted with "
      "the most that it may hold: beyond the limit it is answered with RESOURCE_EXHAUSTED (429), "
      "or with INVALID_ARGUMENT where it can never fit. auto: an eighth of --memory-limit");
  flags.number("--max-sessions", sessions.max_sessions, 0, 100'000'000,
               "Sessions at a time; 0: only --session-memory limits them");
  flags.bytes_or_auto(
      "--session-memory", sessions.session_memory_bytes, 1, kMostBytes,
      "Memory for sessions and running calls, in bytes: states, histories and records; "
      "for each sample of a running call also 40 KB of draft tokens, and at most "
      "--outbox-tokens unread tokens of 64 bytes plus 8 for each of top_log2_probs. "
      "Calls on existing sessions are never refused for lack of it. auto: what the rest of the "
      "plan leaves of 0.9 of --memory-limit; below 64MiB the server does not start",
      "no session fits into 0 bytes");
  flags.duration(
      "--max-queue-wait", sessions.max_queue_wait, 0ms,
      "A request that fits into --session-memory, but not beside what others hold of it "
      "now, waits for so long, or up to its own deadline; requests of all models wait in "
      "one order, with turns between callers. Then it is answered with "
      "RESOURCE_EXHAUSTED (429). 0: at once");
  flags.duration("--session-idle-timeout", sessions.idle_timeout, 0ms,
                 "A session unused for this long is evicted; 0: never");
  flags.number("--session-history-tokens", sessions.history_tokens, 1, 1'000'000'000,
               "Last tokens of a session that are kept, for reading and rewinding, at 1.25 to "
               "4.25 bytes each; a session can ask for fewer");
  flags.bytes_or_auto("--prefix-cache-memory", options.prefixes.memory_bytes, 0, kMostBytes,
                      "Memory for states after earlier prompts: a prompt with the same beginning, "
                      "of the same caller, continues from there. Only uses what sessions and calls "
                      "leave of --session-memory. 0: off; auto: all of that");
  flags.toggle("--chat-read-ahead", options.prefixes.reads_ahead,
               "While a model has nothing else to do it reads the last answer as the chat "
               "template will write it, so that the next turn reads the question alone");
  flags.path(
      "--initial-states", options.initial_states.directory, "DIR",
      "Directory of snapshots (`lintel session snapshot`), each a named state for all callers: "
      "DIR/NAME.snapshot is `lintel generate --initial-state NAME`. Read at startup, for "
      "models loaded then; a damaged one, or one of other weights, prevents the start");
  flags.toggle("--accept-other-numerics", options.initial_states.accept_other_numerics,
               "Also accept --initial-states of machines with other numerics");
}

void add_session_store_flags(Table& flags, ServerOptions& options) {
  ServerOptions::DurableOptions& durable = options.durable;
  flags.begin_group("Sessions that outlive the server");
  flags.path("--session-store", durable.store, "DIR",
             "Directory, for this server alone, that keeps sessions across restarts, crashes and "
             "power losses; created if missing, with mode 0700. Or storage that servers share: "
             "redis://HOST:PORT of a Redis or Valkey server, or of some servers of a cluster, "
             "separated by commas; rediss:// with TLS. Without it sessions are in memory only");
  flags.choice<kDurabilities>(
      "--session-durability", durable.durability, "LEVEL",
      "What a session keeps after the server's end, unless its creator chooses. none; call: "
      "calls whose end was received; input: also a running call, which repeated by its call_id "
      "gives the same tokens and continues; token: also each token before it is sent. Defaults "
      "to input with --session-store, else none");
  flags.duration(
      "--session-commit-interval", durable.commit_interval_ms, 0ms,
      "Writes of several calls are gathered for this long into one commit. At the level token, "
      "tokens are sent this much later, up to four times that with more than 16 streams");
  flags.number("--session-park-tokens", durable.park_tokens, 0, 1'000'000'000,
               "A state is stored after this many tokens of a call, and at its end if as many "
               "have come since the last state (a quarter if memory is short). A session that "
               "is not in memory reads later tokens again, as a prompt. 0: 1024, and each "
               "call's end for states of 1 MiB or more");
  flags.bytes("--session-store-size", durable.store_size_bytes, 1 << 20, kMostBytes,
              "Disk space for states of each size; beyond it sessions read their tokens again");
  flags.number("--session-store-threads", durable.store_threads, 1, 64,
               "Threads that wait for the disk, on which calls that name a session start");
  flags.number("--session-load-queue", durable.load_queue, 1, 1'000'000,
               "Calls that wait for such a thread; one more is refused");
  flags.duration(
      "--session-expire", durable.expire, 1s,
      "A stored session unused for this long is removed, unless its creator chose a time");
  flags.toggle("--chat-spill", durable.chat_spill,
               "Also store conversations whose clients send the whole history: the state after "
               "the last turn and the tokens before it, so that the next turn alone is read "
               "after a restart. Needs --session-store");
  flags.duration("--chat-spill-idle", durable.chat_spill_idle, 0s,
                 "A turn is stored this long after its end; earlier when memory is needed or "
                 "the server ends");
  flags.duration("--chat-spill-expire", durable.chat_spill_expire, 1s,
                 "A stored turn is removed after this time");
  flags.choice<kNumerics>(
      "--session-numerics", durable.takes_other_numerics, "WHAT",
      "For stored sessions of other numerics. warn: they continue, with a line in the log and "
      "Session.numerics_changed_at; strict: calls on them are refused");
  flags.duration(
      "--store-broken-timeout", durable.store_broken_timeout_ms, 0ms,
      "Time after a failed write to storage until liveness (/healthz, v2/health/live) fails, "
      "so that the server is restarted. Readiness fails at once. 0: never");
  flags.text<parse_handover, show_handover>(
      "--drain-handover", durable.drain_handover_ms, "DURATION",
      "After SIGTERM, time for calls with a call_id on stored sessions; then they end "
      "with CALL_MOVED and resume when repeated, on another server or after the restart. "
      "off: at the end of --drain-timeout. Defaults to 5s with shared storage, else off");
  flags.duration("--response-expire", durable.response_expire, 1s,
                 "A response of /v1/responses is removed this long after the last one that "
                 "continues it");
  flags.duration("--response-resume", durable.response_resume, 0s,
                 "A response whose server died counts as in progress for this long, then as "
                 "failed; one in the background continues then on another server of shared "
                 "storage. Its request with the same Idempotency-Key runs it again");
}

void add_shared_store_flags(Table& flags, ServerOptions& options) {
  ServerOptions::SharedStoreOptions& shared = options.shared;
  flags.begin_group("A session store that servers share");
  flags.duration("--session-lease", shared.lease_ms, 2s,
                 "A session stays with a server that failed during a call for at most this "
                 "long; a call ends if its server cannot reach storage for this long, less a "
                 "second. Must exceed cluster-node-timeout");
  flags.text<parse_replicas, show_replicas>(
      "--session-store-wait-replicas", shared.wait_replicas, "N",
      "Replicas of a Redis master that must have a write before it counts as stored. Defaults "
      "to 1 where there are replicas");
  flags.duration("--session-store-wait", shared.wait_ms, 1ms,
                 "Time to wait for these replicas before the write is repeated");
  flags.path("--session-store-credentials", shared.credentials, "FILE",
             "File with the user and the password for Redis, a line each; the password alone "
             "for the default user");
  flags.path("--session-store-ca", shared.ca, "FILE",
             "PEM authorities of a rediss:// server's certificate. Defaults to the system's");
  flags.path("--session-store-cert", shared.cert, "FILE",
             "PEM certificate of this server for rediss:// storage that requires one");
  flags.path("--session-store-key", shared.key, "FILE", "Its private key, PEM, without a password");
}

void add_request_limit_flags(Table& flags, ServerOptions& options) {
  RequestLimits& limits = options.models.limits;
  constexpr std::int64_t kMost = 1'000'000'000;
  flags.begin_group("Limits of one request");
  flags.number("--max-prompt-tokens", limits.max_prompt_tokens, 1, kMost, "Tokens of a prompt");
  flags.number("--max-new-tokens", limits.max_new_tokens, 1, kMost,
               "Tokens a call produces for each sample");
  flags.number("--max-samples", limits.max_samples, 1, 4096,
               "Samples of one prompt; also at most --max-batch-rows");
  flags.number("--max-top-log2-probs", limits.max_top_log2_probs, 0, 4096,
               "Most likely tokens reported at each position");
  flags.number("--max-stop-strings", limits.max_stop_strings, 0, 1024, "Stop strings of a call");
  flags.number("--max-given-tokens", limits.max_given_tokens, 0, kMost, "Given tokens of a call");
  flags.number("--max-score-tokens", limits.max_score_tokens, 2, kMost,
               "Tokens of all sequences of a Score call, at most 65536 sequences");
  flags.number("--chat-max-tokens", limits.chat_max_tokens, 1, kMost,
               "Tokens of a chat's answer whose request has no max_completion_tokens; also at "
               "most --max-new-tokens, and what is left of the context");
  flags.choice<kUnknownMembers>(
      "--unknown-members", options.refuses_unknown_members, "RULE",
      "Members that OpenAI's and Anthropic's routes and Ollama's chat and generate do not know: "
      "ignore them and name them in the header lintel-ignored, or refuse the request");
}

void add_streaming_flags(Table& flags, ServerOptions& options) {
  flags.begin_group("Streaming");
  flags.duration("--chunk-interval", options.streaming.chunk_interval_ms, 0ms,
                 "Tokens of a stream are gathered for this long into one message; from four "
                 "streams a worker on, half a worker's streams times as long, at most 16 times; "
                 "0: a message for each step");
  flags.number("--outbox-tokens", options.streaming.outbox_tokens, 1, 10'000'000,
               "A stream with more unread tokens than this is paused");
}

void add_logging_flags(Table& flags, ServerOptions& options) {
  flags.begin_group("Logging, to standard error");
  flags.choice<kLogLevels>("--log-level", options.logging.level, "LEVEL",
                           "Least severe messages logged. Each call is a line at info");
  flags.choice<kLogFormats>("--log-format", options.logging.json, "FORMAT",
                            "text, or json: one JSON object a line, errors at startup included");
}

void add_monitoring_flags(Table& flags, ServerOptions& options) {
  flags.begin_group("Monitoring");
  flags.text<parse_metrics_address, show_optional_address>(
      "--metrics-listen", options.monitoring.metrics_listen, "ADDRESS",
      "HTTP on HOST:PORT: /metrics for Prometheus, /healthz, /readyz. Plain text, "
      "without prompts, output or ids; port 0 picks a free one");
  flags.toggle("--channelz", options.monitoring.channelz,
               "gRPC's channelz service: connections, peers and calls. With --auth-tokens for "
               "the role admin, else for all callers");
}

}  // namespace

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

std::chrono::milliseconds handover_after(const ServerOptions::DurableOptions& options) {
  constexpr std::chrono::milliseconds kShared{5000};
  const std::string store = options.store.string();
  const bool is_shared = store.rfind("redis://", 0) == 0 || store.rfind("rediss://", 0) == 0;
  return options.drain_handover_ms.value_or(is_shared ? kShared
                                                      : ServerOptions::DurableOptions::kNever);
}

std::vector<Flag> server_flags(ServerOptions& options) {
  std::vector<Flag> rows;
  Table flags(rows);
  constexpr void (*kGroups[])(Table&, ServerOptions&) = {
      add_model_flags,        add_network_flags,       add_http_flags,      add_security_flags,
      add_identity_flags,     add_scheduling_flags,    add_session_flags,   add_session_store_flags,
      add_shared_store_flags, add_request_limit_flags, add_streaming_flags, add_logging_flags,
      add_monitoring_flags};
  for (const auto add_group : kGroups) add_group(flags, options);
  return rows;
}

}  // namespace lintel
