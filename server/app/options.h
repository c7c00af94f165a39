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

#include "server/auth/quotas.h"
#include "server/auth/security_options.h"
#include "server/base/listen_address.h"
#include "server/log/logging.h"
#include "server/models/model_options.h"
#include "server/port/connection_settings.h"
#include "server/sessions/session_store.h"
#include "server/stream/streaming_options.h"

namespace lintel {

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
ModelDirectory parse_model_directory(const std::string& text);
// "16", from low to high.
std::int64_t parse_whole_number(std::string_view text, std::int64_t low, std::int64_t high);

}  // namespace lintel
