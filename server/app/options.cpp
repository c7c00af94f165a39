#include "server/app/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <thread>

#include "describe/flags.h"
#include "describe/suggest.h"
#include "server/app/config_file.h"
#include "server/app/flag_errors.h"
#include "server/app/flag_help.h"
#include "server/app/option_checks.h"

namespace lintel {
namespace {

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

std::string format_duration(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  if (ms == 0) return "0";
  if (ms % 60'000 == 0) return std::to_string(ms / 60'000) + "m";
  if (ms % 1000 == 0) return std::to_string(ms / 1000) + "s";
  return std::to_string(ms) + "ms";
}

// Declares the flags of ServerOptions on a CLI11 app; `options` holds the defaults and takes the
// values.
class Flags {
 public:
  Flags(CLI::App& app, ServerOptions& options) : app_(app), options_(options) {}

  void declare() {
    declare_models();
    declare_network();
    declare_security();
    declare_identity_limits();
    declare_scheduling();
    declare_sessions();
    declare_limits();
    declare_streaming();
    declare_logging();
    declare_monitoring();
  }

 private:
  // A flag whose text `store` reads; what it throws as UsageError is refused under the flag's name.
  CLI::Option* text(const std::string& name, const std::string& type, const std::string& initial,
                    const std::string& help, std::function<void(const std::string&)> store) {
    CLI::Option* const option = app_.add_option_function<std::string>(
        name,
        [name, store = std::move(store)](const std::string& value) {
          try {
            store(value);
          } catch (const UsageError& error) {
            throw CLI::ValidationError(name, error.what());
          }
        },
        help);
    option->type_name(type)->group(group_);
    if (!initial.empty()) option->default_str(initial);
    return option;
  }

  template <typename T>
  void number(const std::string& name, T& value, T low, T high, const std::string& help) {
    text(name, "N", std::to_string(value), help, [&value, low, high](const std::string& given) {
      value = static_cast<T>(parse_whole_number(given, static_cast<std::int64_t>(low),
                                                static_cast<std::int64_t>(high)));
    });
  }

  // One of `words`.
  void choice(const std::string& name, const std::string& type, const std::string& initial,
              const std::vector<std::string>& words, const std::string& help,
              std::function<void(const std::string&)> store) {
    text(name, type, initial, help, [words, store = std::move(store)](const std::string& given) {
      if (std::ranges::find(words, given) == words.end())
        throw UsageError(not_one_of(given, words));
      store(given);
    })->check(describe::offers(words));
  }
  static std::string not_one_of(const std::string& given, const std::vector<std::string>& words) {
    std::string list;
    for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
    return "'" + given + "' is not one of: " + list + describe::did_you_mean(given, words);
  }

  void file(const std::string& name, std::filesystem::path& value, const std::string& help) {
    text(name, "FILE", "", help, [&value](const std::string& given) {
      if (given.empty()) throw UsageError("is empty");
      value = given;
    });
  }

  template <typename Duration>
  void duration(const std::string& name, Duration& value, std::chrono::milliseconds low,
                const std::string& help) {
    text(name, "DURATION", format_duration(value), help, [&value, low](const std::string& given) {
      const std::chrono::milliseconds parsed = parse_duration(given);
      const Duration rounded = std::chrono::duration_cast<Duration>(parsed);
      if (parsed < low || rounded != parsed) {
        const bool seconds = std::is_same_v<Duration, std::chrono::seconds>;
        throw UsageError("'" + given + "' is not at least " + format_duration(low) +
                         (seconds ? " and whole seconds" : ""));
      }
      value = rounded;
    });
  }

  void declare_models() {
    group_ = "Models";
    app_.add_option_function<std::vector<std::string>>(
            "--model",
            [this](const std::vector<std::string>& values) {
              for (const std::string& value : values) {
                try {
                  options_.models.directories.push_back(parse_model_directory(value));
                } catch (const UsageError& error) {
                  throw CLI::ValidationError("--model", error.what());
                }
              }
            },
            "Model directory to serve; repeat for several. NAME is the last component of DIR "
            "unless given")
        ->type_name("[NAME=]DIR")
        ->group(group_);
    text("--model-repository", "DIR", "",
         "Directory of models that can be loaded, loaded anew and unloaded while the server runs "
         "(`lintel model load NAME`): DIR/NAME/, or DIR/NAME/1/, DIR/NAME/2/ ... for versions, of "
         "which the highest is taken",
         [this](const std::string& given) {
           if (given.empty()) throw UsageError("is empty");
           options_.models.repository = given;
         });
    app_.add_option("--load-model", options_.models.load,
                    "Model of the repository to load at the start; repeat for several, '*' for all")
        ->type_name("NAME")
        ->group(group_);
    text("--model-memory", "BYTES", "0",
         "Memory for the weights and tables of all models, and for what loading one takes beside "
         "them; told from a model's files before any weight is read. 0: no bound",
         [this](const std::string& given) { options_.models.memory_bytes = parse_bytes(given); });
    choice(
        "--weight-type", "TYPE", "f32", {"f32", "bf16", "int8"},
        "What the matrices are held and multiplied in, whatever the file has: f32, bf16, or int8 "
        "(a scale for each output, inputs quantised row by row). The predictor, the norms and "
        "the states stay in f32",
        [this](const std::string& given) {
          options_.models.weight_type = weight_type_named(given).value();
          options_.models.weight_type_given = true;
        });
    text("--attention", "SPEC", "",
         "Runs the weights with another attention than they were trained for, to compare speed: "
         "linear, softmax or lsh, with keys as in config.json, e.g. softmax:scale=0.2 or "
         "lsh:rounds=4,bits=32,chunk_size=29,seed=7 (seed: of hash planes). recompute=true keeps "
         "no state and runs the whole prefix for every token, as published baselines did",
         [this](const std::string& given) {
           try {
             options_.models.attention = parse_attention_spec(given);
           } catch (const ModelError& error) {
             throw UsageError(error.what());
           }
         });
  }

  void declare_network() {
    group_ = "Network";
    text("--listen", "ADDRESS", options_.listen.to_string(options_.listen.port),
         "HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks a free one",
         [this](const std::string& given) { options_.listen = parse_listen_address(given); });
    text("--max-message-size", "BYTES",
         format_bytes(static_cast<std::uint64_t>(options_.connections.max_message_bytes)),
         "Largest request message, in bytes", [this](const std::string& given) {
           const std::uint64_t bytes = parse_bytes(given);
           if (bytes < 4096 || bytes > 0x7fffffff) {
             throw UsageError("'" + given + "' is not from 4KiB to 2GiB - 1");
           }
           options_.connections.max_message_bytes = static_cast<std::int64_t>(bytes);
         });
    text("--connection-memory", "BYTES",
         format_bytes(static_cast<std::uint64_t>(options_.connections.memory_bytes)),
         "What gRPC may hold of all connections, half-sent messages for one, in bytes (suffixes as "
         "above); beyond it calls are ended",
         [this](const std::string& given) {
           const std::uint64_t bytes = parse_bytes(given);
           if (bytes < (16 << 20) || bytes > (std::uint64_t{1} << 40)) {
             throw UsageError("'" + given + "' is not from 16MiB to 1TiB");
           }
           options_.connections.memory_bytes = static_cast<std::int64_t>(bytes);
         });
    duration("--keepalive-time", options_.connections.keepalive_time_ms, std::chrono::seconds(1),
             "A connection silent for this long is pinged");
    duration("--keepalive-timeout", options_.connections.keepalive_timeout_ms,
             std::chrono::milliseconds(100),
             "A ping unanswered for this long closes the connection and cancels its calls");
    text("--max-metadata-size", "BYTES",
         format_bytes(static_cast<std::uint64_t>(options_.connections.max_metadata_bytes)),
         "Largest headers of a call, in bytes", [this](const std::string& given) {
           const std::uint64_t bytes = parse_bytes(given);
           if (bytes < 1024 || bytes > (1 << 20)) {
             throw UsageError("'" + given + "' is not from 1KiB to 1MiB");
           }
           options_.connections.max_metadata_bytes = static_cast<int>(bytes);
         });
    number("--max-connection-streams", options_.connections.max_streams, 1, 1'000'000,
           "Calls at a time on one connection; more wait at the client");
    duration("--max-connection-age", options_.connections.max_age_ms, std::chrono::milliseconds(0),
             "A connection this old takes no new calls; clients open another; 0: never");
    duration("--max-connection-age-grace", options_.connections.max_age_grace_ms,
             std::chrono::milliseconds(0),
             "Streams of a connection past its age may go on for this long; 0: to their end");
    duration("--drain-timeout", options_.models.drain_timeout_ms, std::chrono::milliseconds(0),
             "After SIGTERM running streams may go on for this long");
  }

  void declare_security() {
    group_ = "Security";
    SecurityOptions& security = options_.security;
    file(
        "--tls-cert", security.tls_cert,
        "Serve TLS with this PEM certificate (its intermediates after it), for names and addresses "
        "in its subject alternative names. Read again when it changes");
    file("--tls-key", security.tls_key, "Its PEM private key, without a password");
    file("--tls-client-ca", security.tls_client_ca,
         "Mutual TLS: clients need a certificate signed by one of these, PEM");
    file("--auth-tokens", security.auth_tokens,
         "Calls need a bearer token of this file: a line each, NAME ROLES sha256:HEX, as `lintel "
         "token "
         "new` makes them. Read again when it changes. Health needs none");
    app_.add_option(
            "--admin-certificate", security.admin_certificates,
            "In mutual TLS without --auth-tokens: clients of this name have the role admin "
            "(loading "
            "models, log level, everybody's sessions); repeat for several. A certificate's name is "
            "its first subject alternative name, or without any its common name; the log has it "
            "with x509: in front")
        ->type_name("NAME")
        ->group(group_);
    app_.add_flag("--insecure-public", security.insecure_public,
                  "Allow plain text on an address other machines reach: prompts and output can be "
                  "read and changed on their way")
        ->group(group_);
  }

  void declare_identity_limits() {
    group_ =
        "Limits of one identity (a token's or certificate's name; else all callers together), 0: "
        "none";
    Quotas::Limits& identity = options_.identity;
    number("--identity-max-streams", identity.max_streams, 0, 1'000'000,
           "Generate and Score calls at a time");
    number("--identity-max-sessions", options_.sessions.max_sessions_per_owner, std::size_t{0},
           std::size_t{100'000'000}, "Sessions at a time");
    text("--identity-memory", "BYTES", "0", "State of its sessions and calls, in bytes",
         [this](const std::string& given) {
           options_.sessions.bytes_per_owner = parse_bytes(given);
         });
    constexpr std::int64_t kMost = 1'000'000'000'000;
    number(
        "--identity-tokens-per-second", identity.tokens_per_second, std::int64_t{0}, kMost,
        "Prompt and new tokens, paid for as they are read and produced: without anything saved up "
        "the identity's calls pause, and go on together at this rate. A call that would wait for "
        "more than ten seconds to begin is refused");
    number("--identity-token-burst", identity.token_burst, std::int64_t{0}, kMost,
           "Tokens saved up at most; 0: ten seconds' worth");
  }

  void declare_monitoring() {
    group_ = "Monitoring";
    text("--metrics-listen", "ADDRESS", "",
         "HTTP on HOST:PORT: /metrics for Prometheus, /healthz, /readyz. Plain text, without "
         "prompts, "
         "output or ids; port 0 picks a free one",
         [this](const std::string& given) {
           const ListenAddress address = parse_listen_address(given);
           if (!address.unix_path.empty()) throw UsageError("'" + given + "' is not HOST:PORT");
           if (address.host.find(':') != std::string::npos) {
             throw UsageError("'" + given + "': metrics are served over IPv4 only");
           }
           options_.monitoring.metrics_listen = address;
         });
    app_.add_flag("--channelz", options_.monitoring.channelz,
                  "gRPC's channelz service: connections, peers and calls. With --auth-tokens for "
                  "the role "
                  "admin, without for everybody")
        ->group(group_);
  }

  void declare_scheduling() {
    group_ = "Scheduling, for each model";
    number("--workers", options_.models.scheduling.workers, 1, 1024,
           "Worker threads; the default is one per processor");
    text("--max-batch-rows", "N", "auto",
         "Sequences a worker decodes together, and rows of its step. auto: 64 in f32; in bf16 and "
         "int8 as many, 16 to 64, as keep the states of all workers in a quarter of the last cache",
         [this](const std::string& given) {
           if (given == "auto") return;
           options_.models.scheduling.max_batch_rows =
               static_cast<int>(parse_whole_number(given, 1, 4096));
         });
    number("--prefill-rows", options_.models.scheduling.prefill_rows_per_step, 1, 4096,
           "Rows of a step that read prompts while others decode; at most --max-batch-rows");
    number("--max-queued-requests", options_.models.scheduling.max_queued_requests, 1, 1'000'000,
           "Requests accepted but not yet in a batch; one more is refused");
    text("--max-queued-bytes", "BYTES", format_bytes(options_.models.scheduling.max_queued_bytes),
         "Memory held by those requests, the messages they came in included; one more is refused, "
         "but for the only one",
         [this](const std::string& given) {
           const std::uint64_t bytes = parse_bytes(given);
           if (bytes == 0) throw UsageError("no request fits into 0 bytes");
           options_.models.scheduling.max_queued_bytes = bytes;
         });
    choice(
        "--speculation", "MODE", "auto", {"off", "auto", "on"},
        "Feeding guesses of the next values in the same step, which makes few streams faster and "
        "changes no value: off; auto: where the guess is likely and the step has few rows; on: "
        "every guess, for tests",
        [this](const std::string& given) {
          options_.models.scheduling.speculation = given == "off"    ? Speculation::kOff
                                                   : given == "auto" ? Speculation::kAuto
                                                                     : Speculation::kOn;
        });
    number("--speculation-rows", options_.models.scheduling.speculation_rows, 1, 64,
           "Rows of a step up to which guesses are added to it");
  }

  void declare_sessions() {
    group_ = "Sessions";
    number("--max-sessions", options_.sessions.max_sessions, std::size_t{0},
           std::size_t{100'000'000}, "Sessions at a time; 0: only --session-memory limits them");
    text("--session-memory", "BYTES", format_bytes(options_.sessions.session_memory_bytes),
         "Memory for sessions and running calls, in bytes (suffixes as above): their states and "
         "records; while a call runs, also 40 KB that a sample guesses from, and the values that "
         "may wait for a slow client, at most --outbox-tokens of 64 bytes, and 8 more for each of "
         "top_log2_probs. A session is never kept from going on for these",
         [this](const std::string& given) {
           const std::uint64_t bytes = parse_bytes(given);
           if (bytes == 0) throw UsageError("no session fits into 0 bytes");
           options_.sessions.session_memory_bytes = bytes;
         });
    duration("--session-idle-timeout", options_.sessions.idle_timeout, std::chrono::milliseconds(0),
             "A session unused for this long is evicted; 0: never");
  }

  void declare_limits() {
    group_ = "Limits of one request";
    RequestLimits& limits = options_.models.limits;
    constexpr std::int64_t kMost = 1'000'000'000;
    number("--max-prompt-tokens", limits.max_prompt_tokens, std::int64_t{1}, kMost,
           "Tokens of a prompt");
    number("--max-new-tokens", limits.max_new_tokens, std::int64_t{1}, kMost,
           "Tokens a call produces for each sample");
    number("--max-samples", limits.max_samples, 1, 4096,
           "Samples of one prompt; also at most --max-batch-rows");
    number("--max-top-log2-probs", limits.max_top_log2_probs, 0, 4096,
           "Most likely values reported for each token");
    number("--max-stop-strings", limits.max_stop_strings, 0, 1024, "Stop strings of a call");
    number("--max-given-tokens", limits.max_given_tokens, std::int64_t{0}, kMost,
           "Given tokens of a call");
    number("--max-score-tokens", limits.max_score_tokens, std::int64_t{2}, kMost,
           "Tokens of a Score call, all sequences (65536 at most) together");
  }

  void declare_streaming() {
    group_ = "Streaming";
    duration(
        "--chunk-interval", options_.streaming.chunk_interval_ms, std::chrono::milliseconds(0),
        "Tokens of a stream are gathered for this long into one message, and from 16 streams on "
        "for "
        "longer, an eighth of their number times and 16 times at most; 0: every step is a message");
    number("--outbox-tokens", options_.streaming.outbox_tokens, 1, 10'000'000,
           "A stream whose reader leaves more tokens than this unread is paused");
  }

  void declare_logging() {
    group_ = "Logging, to standard error";
    // "warning" is what `lintel admin log-level` prints.
    choice(
        "--log-level", "LEVEL", options_.logging.level,
        {"trace", "debug", "info", "warn", "warning", "error", "critical", "off"},
        "Least severe messages logged: trace, debug, info, warn, error, critical or off. Each call "
        "is a line at info",
        [this](const std::string& given) { options_.logging.level = given; });
    choice("--log-format", "FORMAT", "text", {"text", "json"},
           "text, or json for one JSON object a line, errors at the start included",
           [this](const std::string& given) { options_.logging.json = given == "json"; });
  }

  CLI::App& app_;
  ServerOptions& options_;
  std::string group_;
};

}  // namespace

bool parse_server_options(int argc, const char* const* argv, ServerOptions* options,
                          std::string* help) {
  ServerOptions parsed;
  parsed.models.scheduling.workers =
      static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  CLI::App app("", "lintel-server");
  app.set_version_flag("--version", "lintel-server " LINTEL_VERSION);
  app.set_config("--config", "",
                 "File with the flags below as keys without the dashes, TOML or INI: workers = 4; "
                 "flags win")
      ->type_name("FILE");
  describe::add_flags(app, /*machine_defaults=*/{"--workers"});
  const auto config = std::make_shared<ConfigFile>(app);
  app.config_formatter(config);
  Flags flags(app, parsed);  // its callbacks refer to it: it outlives the parsing
  flags.declare();
  lay_out_help(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    *help = app.help();
    return false;
  } catch (const CLI::CallForVersion& text) {  // or a description
    *help = std::string(text.what()) + "\n";
    return false;
  } catch (const CLI::ParseError& error) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw UsageError(in_words(error, app, *config, argc, argv));
  } catch (const UsageError&) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw;
  }
  options->logging = parsed.logging;  // also for what is found wrong from here on
  check_together(parsed, app.count("--prefill-rows") > 0);
  *options = std::move(parsed);
  return true;
}

}  // namespace lintel
