#include "server/config/port_flags.h"

namespace lintel {
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

}  // namespace lintel
