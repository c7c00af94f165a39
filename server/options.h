// ServerOptions: everything an operator can choose, grouped, with its unit in its name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention_spec.h"
#include "model/dense.h"
#include "server/speculation.h"

namespace lintel {

// Where the server listens: HOST:PORT, [IPv6]:PORT or unix:PATH.
struct ListenAddress {
  std::string host = "127.0.0.1";  // without brackets; empty for a unix socket
  int port = 50051;                // 0: the system picks one
  std::string unix_path;           // not empty: a unix socket

  // As gRPC takes it and as the ready line prints it, with `bound_port` in place of the port.
  std::string to_string(int bound_port) const;
  // Whether only this machine can connect: a unix socket, localhost, 127.0.0.0/8 or ::1. A name is
  // not resolved.
  bool is_local() const;
};

// What one request may ask for. Also what ModelService reports.
struct RequestLimits {
  std::int64_t max_prompt_tokens = 1'000'000;
  std::int64_t max_new_tokens = 1'000'000;
  int max_samples = 64;  // and never more than max_batch_rows
  int max_top_log2_probs = 64;
  int max_stop_tokens = 256;
  int max_stop_strings = 16;
  int max_stop_string_bytes = 256;
  std::int64_t max_given_tokens = 1'000'000;
  // All sequences of a Score request. One sequence of this length answers within the 4 MiB that
  // gRPC clients accept by default.
  std::int64_t max_score_tokens = 1'000'000;
};

struct ServerOptions {
  struct ModelDirectory {
    std::string name;
    std::filesystem::path path;
  };
  std::vector<ModelDirectory> models;      // names differ
  std::filesystem::path model_repository;  // ModelRepository; empty: nothing is loaded at run time
  std::vector<std::string> load_models;    // of the repository, at the start; "*": all
  std::size_t model_memory_bytes = 0;      // of all models together; 0: no bound
  WeightType weight_type = WeightType::kF32;
  bool weight_type_given = false;          // chosen by whoever started the server
  std::optional<AttentionSpec> attention;  // of every model, in place of its own

  ListenAddress listen;
  struct Connections {
    std::int64_t max_message_bytes = 4 << 20;  // of a request; gRPC's own default
    // What gRPC may hold of all connections together: what came in and is not a whole message yet,
    // and what waits to go out. Beyond it gRPC ends calls.
    std::int64_t memory_bytes = 256 << 20;
    int max_metadata_bytes = 16 << 10;  // of a call's headers
    int max_streams = 1024;             // calls at a time of one connection
    // A client that answers no ping for time + timeout is gone: its calls are cancelled.
    std::chrono::milliseconds keepalive_time_ms{30'000};
    std::chrono::milliseconds keepalive_timeout_ms{10'000};
    // A connection this old takes no new calls (the client opens another, and shows its certificate
    // again); what runs on it may go on for the grace, then the connection is closed. 0: no bound.
    std::chrono::milliseconds max_age_ms{3'600'000};
    std::chrono::milliseconds max_age_grace_ms{3'600'000};
  } connections;

  struct Security {
    std::filesystem::path tls_cert, tls_key;  // both empty: plain text
    std::filesystem::path tls_client_ca;      // not empty: clients need a certificate signed by it
    // Names of certificates with the role admin, where there are no tokens.
    std::vector<std::string> admin_certificates;
    bool insecure_public = false;       // plain text beyond this machine
    std::filesystem::path auth_tokens;  // TokenTable; empty: no token is asked for
    bool tls() const { return !tls_cert.empty(); }
  } security;

  // Of one identity (a token's name, or a client certificate's); where callers are not told apart,
  // of all of them together. 0: no limit.
  struct IdentityLimits {
    int max_streams = 0;
    std::size_t max_sessions = 0;
    std::size_t memory_bytes = 0;
    std::int64_t tokens_per_second = 0;
    std::int64_t token_burst = 0;  // 0: ten seconds' worth
  } identity;

  struct Scheduling {
    int workers = 1;  // threads of each model; parse_server_options makes it one per processor
    int max_batch_rows = 0;  // 0: batch_rows_for() of each model
    int prefill_rows_per_step = 32;
    int max_queued_requests = 1024;
    std::size_t max_queued_bytes = std::size_t{256} << 20;  // held by them; one always may
    Speculation speculation = Speculation::kAuto;
    int speculation_rows = 16;
  } scheduling;

  struct Sessions {
    std::size_t max_sessions = 0;  // 0: only memory limits them
    std::size_t memory_bytes = std::size_t{1} << 30;
    std::chrono::seconds idle_timeout_seconds{600};  // 0: never evicted
  } sessions;

  RequestLimits limits;

  struct Streaming {
    std::chrono::milliseconds chunk_interval_ms{10};  // between messages of one stream
    int outbox_tokens = 4096;                         // a stream that holds more is paused
  } streaming;

  std::chrono::milliseconds drain_timeout_ms{30'000};

  struct Logging {
    std::string level = "info";
    bool json = false;
  } logging;

  struct Monitoring {
    std::optional<ListenAddress> metrics_listen;  // HTTP: /metrics, /healthz, /readyz
    bool channelz = false;
  } monitoring;
};

// A command line or configuration that makes no sense. what() says which flag and why.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads flags and, with --config FILE, a TOML or INI file whose keys are the long flags; flags win.
// Returns false when --help or --version was asked for and `help` holds the text. Throws
// UsageError; options->logging is then as far as it is known, so that the error can be told as the
// log is written. Touches no file but the configuration.
bool parse_server_options(int argc, const char* const* argv, ServerOptions* options,
                          std::string* help);

// "512MiB", "2GB", "1048576": bytes; KB is 1000, KiB is 1024. Throws UsageError.
std::uint64_t parse_bytes(std::string_view text);
// "250ms", "30s", "10m", "2h", "0": a number needs its unit unless it is 0. Throws UsageError.
std::chrono::milliseconds parse_duration(std::string_view text);
// Throws UsageError.
ListenAddress parse_listen_address(const std::string& text);
// "[NAME=]DIR"; without a name, the last component of DIR. Throws UsageError.
ServerOptions::ModelDirectory parse_model_directory(const std::string& text);
// "16", from low to high.
std::int64_t parse_whole_number(std::string_view text, std::int64_t low, std::int64_t high);

}  // namespace lintel
