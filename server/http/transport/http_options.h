// HttpOptions: the address of HTTP and the limits of its clients.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/core/listen_address.h"

namespace lintel {

struct HttpOptions {
  std::optional<ListenAddress> listen;    // none: no HTTP
  std::vector<std::string> cors_origins;  // pages of these origins may call; "*": of all
  // Names by which the server may be called, besides those of its own machine, where it listens for
  // that alone: "proxy.example" or "proxy.example:8443".
  std::vector<std::string> allowed_hosts;
  int threads = 2;  // that read, write and translate for all connections
  int max_connections = 1024;
  int max_client_connections = 256;  // of one address
  int max_header_bytes = 16 << 10;   // of a request: its first line and its headers
  // What came of requests' bodies and is not yet handed on, of all connections together.
  std::int64_t memory_bytes = 64 << 20;
  std::chrono::milliseconds header_timeout_ms{
      10'000};                                         // from a request's first byte to its headers
  std::chrono::milliseconds body_timeout_ms{60'000};   // from its headers to its end
  std::chrono::milliseconds idle_timeout_ms{75'000};   // between two requests
  std::chrono::milliseconds write_timeout_ms{60'000};  // a client that takes nothing for so long
};

}  // namespace lintel
