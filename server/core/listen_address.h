// SPDX-License-Identifier: Apache-2.0
// ListenAddress: where a server listens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// HOST:PORT, [IPv6]:PORT or unix:PATH.
struct ListenAddress {
  std::string host = "127.0.0.1";  // without brackets; empty for a unix socket
  int port = 50051;                // 0: the system picks one
  std::string unix_path;           // not empty: a unix socket

  // The address as gRPC accepts it and as the ready line prints it, with `bound_port` as the port.
  std::string to_string(int bound_port) const;
  // True if only this machine can connect: a unix socket, localhost, 127.0.0.0/8 or ::1. Names are
  // not resolved.
  bool is_local() const;
};

// The names by which HTTP clients may call a server, which they send as Host. Even if only this
// machine can connect, a browser on it still can, and a stranger's name may resolve to this
// machine: the browser then takes that stranger's page for the server's own and lets it read all
// answers (DNS rebinding). Constant after construction.
class HostRules {
 public:
  // Names are looked at where `address` is this machine's alone and no unix socket, which no
  // browser reaches. `names`: HOST for all its ports, or HOST:PORT.
  HostRules(const ListenAddress& address, std::vector<std::string> names);

  // `host`: a request's header: "localhost:8080". Names of this machine, localhost, NAME.localhost,
  // 127.0.0.0/8 and [::1], are always taken.
  bool takes(std::string_view host) const;

 private:
  const bool looks_;
  std::vector<std::string> names_;  // in lower case
};

}  // namespace lintel
