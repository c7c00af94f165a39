// ListenAddress: where a server listens.
#pragma once

#include <string>

namespace lintel {

// HOST:PORT, [IPv6]:PORT or unix:PATH.
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

}  // namespace lintel
