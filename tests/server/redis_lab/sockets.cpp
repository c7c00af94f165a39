// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace lintel::testing {
namespace {

sockaddr_in socket_address(const Endpoint& where) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(where.port);
  if (inet_pton(AF_INET, where.address.c_str(), &address.sin_addr) != 1) {
    throw std::system_error(EINVAL, std::generic_category(), where.address);
  }
  return address;
}

Endpoint endpoint_of(const sockaddr_in& address) {
  char digits[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address.sin_addr, digits, sizeof digits);
  return {digits, ntohs(address.sin_port)};
}

[[noreturn]] void fail(int socket, const std::string& what) {
  const int error = errno;
  if (socket >= 0) close(socket);
  throw std::system_error(error, std::generic_category(), what);
}

int bound_socket(const Endpoint& where) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const sockaddr_in address = socket_address(where);
  if (made < 0 || setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail(made, "cannot bind " + where.text());
  }
  return made;
}

}  // namespace

std::uint16_t free_port(const std::string& address) {
  const int socket = bound_socket({address, 0});
  const std::uint16_t port = local_endpoint(socket).port;
  close(socket);
  return port;
}

int listen_at(const Endpoint& where) {
  const int socket = bound_socket(where);
  if (listen(socket, 128) != 0) fail(socket, "cannot listen at " + where.text());
  return socket;
}

int connect_to(const Endpoint& where, const std::string& from) {
  const int socket =
      from.empty() ? ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : bound_socket({from, 0});
  const sockaddr_in address = socket_address(where);
  const int on = 1;
  if (socket < 0 ||
      connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail(socket, "cannot connect to " + where.text());
  }
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

Endpoint local_endpoint(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail(-1, "socket");
  return endpoint_of(address);
}

Endpoint remote_endpoint(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return endpoint_of(address);
}

}  // namespace lintel::testing
