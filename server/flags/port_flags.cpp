#include "server/flags/port_flags.h"

namespace lintel {
namespace {

using std::chrono::milliseconds;

ServerOptions& all(ServerOptions& options) { return options; }
ConnectionOptions& connections(ServerOptions& options) { return options.connections; }
ModelOptions& model_options(ServerOptions& options) { return options.models; }

std::string show_address(const ListenAddress& address) { return address.to_string(address.port); }

}  // namespace

std::vector<Flag> network_flags() {
  using Options = ConnectionOptions;
  return {
      text_flag("--listen", all, &ServerOptions::listen, "ADDRESS", parse_listen_address,
                show_address, "HOST:PORT, [IPv6]:PORT or unix:PATH; port 0 picks a free one"),
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
      duration_flag("--max-connection-age", connections, &Options::max_age_ms, milliseconds(0),
                    "A connection this old takes no new calls; clients open another; 0: never"),
      duration_flag(
          "--max-connection-age-grace", connections, &Options::max_age_grace_ms, milliseconds(0),
          "Streams of a connection past its age may go on for this long; 0: to their end"),
      duration_flag("--drain-timeout", model_options, &ModelOptions::drain_timeout_ms,
                    milliseconds(0), "After SIGTERM running streams may go on for this long"),
  };
}

}  // namespace lintel
