// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/connect_proxy.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace lintel::testing {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// Hands on what has come; false at the end.
bool hand_on(int from, int to) {
  char bytes[16384];
  const ssize_t got = read(from, bytes, sizeof bytes);
  if (got <= 0) return false;
  for (ssize_t done = 0; done < got;) {
    const ssize_t written =
        send(to, bytes + done, static_cast<std::size_t>(got - done), MSG_NOSIGNAL);
    if (written <= 0) return false;
    done += written;
  }
  return true;
}

}  // namespace

ConnectProxy::ConnectProxy(const std::string& server) : server_(server) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 16) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("a proxy cannot listen");
  }
  address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  accepting_ = std::thread([this] { accept_all(); });
}

ConnectProxy::~ConnectProxy() {
  shutdown(listener_, SHUT_RDWR);  // accept() returns
  accepting_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int socket : open_) shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& tunnel : tunnels_) tunnel.join();
  for (const int socket : open_) close(socket);
  close(listener_);
}

std::vector<std::string> ConnectProxy::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

void ConnectProxy::accept_all() {
  for (;;) {
    const int client = accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    {
      const std::lock_guard lock(mutex_);
      open_.push_back(client);
    }
    tunnels_.emplace_back([this, client] { serve(client); });
  }
}

void ConnectProxy::serve(int client) {
  std::string head;
  char byte = 0;
  while (head.find("\r\n\r\n") == std::string::npos && read(client, &byte, 1) == 1) head += byte;
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(head.substr(0, head.find(" HTTP")));
    open_.push_back(server);
  }
  const sockaddr_in address = loopback(std::stoi(server_.substr(server_.rfind(':') + 1)));
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  const std::string established = "HTTP/1.1 200 OK\r\n\r\n";
  if (send(client, established.data(), established.size(), MSG_NOSIGNAL) < 0) return;
  pollfd both[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
  for (;;) {
    if (poll(both, 2, /*milliseconds=*/-1) < 0) return;
    if (both[0].revents != 0 && !hand_on(client, server)) break;
    if (both[1].revents != 0 && !hand_on(server, client)) break;
  }
  shutdown(client, SHUT_RDWR);
  shutdown(server, SHUT_RDWR);
}

}  // namespace lintel::testing
