// SPDX-License-Identifier: Apache-2.0
// Sockets of the lab: TCP on loopback addresses.
#pragma once

#include <cstdint>
#include <string>

namespace lintel::testing {

// The address of a listener: a loopback address in digits, and a port.
struct Endpoint {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;

  std::string text() const { return address + ":" + std::to_string(port); }
  bool operator==(const Endpoint&) const = default;
};

// A port without a listener; another process may take it before it is used.
std::uint16_t free_port(const std::string& address = "127.0.0.1");

// A socket that listens there (port 0: any). Throws std::system_error.
int listen_at(const Endpoint& where);
// A connected socket, its own end at `from` if that is not empty. Throws std::system_error.
int connect_to(const Endpoint& where, const std::string& from = "");
// The two ends of a socket: its own, and the other's.
Endpoint local_endpoint(int socket);
Endpoint remote_endpoint(int socket);

}  // namespace lintel::testing
