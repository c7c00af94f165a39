#include "server/config/log_flags.h"

namespace lintel {
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

}  // namespace lintel
