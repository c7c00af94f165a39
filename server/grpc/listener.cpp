// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "server/core/threads.h"

namespace lintel {
namespace {

// Descriptors that connections leave for other use, at most half of all. The metrics' HTTP server
// holds at most 23 connections, and would spin without a descriptor for one.
constexpr int kReservedDescriptors = 32;
constexpr std::chrono::milliseconds kShortageWait{100};
constexpr std::chrono::seconds kWarningInterval{10};

[[noreturn]] void fail(const ListenAddress& address, const std::string& why) {
  throw std::runtime_error("cannot listen on " + address.to_string(address.port) + ": " + why);
}

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof(value));
}

// The port a socket is bound to.
in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// The first descriptor that is kept for the server itself.
int first_reserved_descriptor() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  return most - std::min(kReservedDescriptors, most / 2);
}

// True if a process listens on a unix socket.
bool is_answered(const sockaddr_un& name) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return false;
  const int refused = ::connect(socket, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  const bool answered = refused == 0 || errno == EAGAIN;  // EAGAIN: many wait to be accepted
  ::close(socket);
  return answered;
}

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Listener::Listener(const ListenAddress& address, std::chrono::milliseconds keepalive_timeout,
                   bool uses_reserve)
    : address_(address), keepalive_timeout_(keepalive_timeout), uses_reserve_(uses_reserve) {
  try {
    address_.unix_path.empty() ? listen_on_host() : listen_on_unix_socket();
    stop_event_ = ::eventfd(0, EFD_CLOEXEC);
    if (stop_event_ < 0) fail(address_, std::strerror(errno));
  } catch (...) {
    stop();
    throw;
  }
}

Listener::~Listener() { stop(); }

void Listener::listen_on_unix_socket() {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  address_.unix_path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  if (is_answered(name)) fail(address_, std::strerror(EADDRINUSE));
  struct stat old {};  // of a server that was killed
  if (::stat(name.sun_path, &old) == 0 && S_ISSOCK(old.st_mode)) ::unlink(name.sun_path);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) fail(address_, std::strerror(errno));
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      ::listen(socket, SOMAXCONN) != 0) {
    const int error = errno;
    ::close(socket);
    fail(address_, std::strerror(error));
  }
  sockets_.push_back(socket);
  ::stat(name.sun_path, &unix_socket_);
}

void Listener::remove_unix_socket() const {
  // A later server may have put another one in its place.
  struct stat now {};
  if (::stat(address_.unix_path.c_str(), &now) != 0) return;
  if (now.st_dev != unix_socket_.st_dev || now.st_ino != unix_socket_.st_ino) return;
  ::unlink(address_.unix_path.c_str());
}

void Listener::listen_on_host() {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int unknown = ::getaddrinfo(address_.host.empty() ? nullptr : address_.host.c_str(),
                                    std::to_string(address_.port).c_str(), &hints, &list);
  if (unknown != 0) fail(address_, ::gai_strerror(unknown));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);

  port_ = address_.port;
  int error = 0;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    sockaddr_storage name{};
    std::memcpy(&name, one->ai_addr, one->ai_addrlen);
    port_of(name) = htons(static_cast<in_port_t>(port_));  // all have the first one's
    const int socket = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) {
      error = errno;  // a host without IPv6, say
      continue;
    }
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (one->ai_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    // Connections inherit these.
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
               static_cast<int>(std::min<std::int64_t>(keepalive_timeout_.count(), 0x7fffffff)));
    socklen_t size = one->ai_addrlen;
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&name), size) != 0 ||
        ::listen(socket, SOMAXCONN) != 0) {
      error = errno;
      ::close(socket);
      if (error == EADDRINUSE) break;  // also where another of the host's addresses is free
      continue;
    }
    size = sizeof(name);
    ::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &size);
    port_ = ntohs(port_of(name));
    sockets_.push_back(socket);
  }
  if (sockets_.empty() || error == EADDRINUSE) fail(address_, std::strerror(error));
}

void Listener::start(std::function<void(int fd)> on_connection) {
  on_connection_ = std::move(on_connection);
  thread_ = std::thread([this] { accept_all(); });
}

void Listener::stop() {
  if (thread_.joinable()) {
    ::eventfd_write(stop_event_, 1);
    thread_.join();
  }
  if (!sockets_.empty() && !address_.unix_path.empty()) remove_unix_socket();
  for (const int socket : sockets_) ::close(socket);
  sockets_.clear();
  if (stop_event_ >= 0) ::close(std::exchange(stop_event_, -1));
}

void Listener::accept_all() {
  std::vector<pollfd> files = {{stop_event_, POLLIN, 0}};
  for (const int socket : sockets_) files.push_back({socket, POLLIN, 0});
  while (files[0].revents == 0) {
    ::poll(files.data(), files.size(), -1);
    bool shortage = false;
    for (std::size_t i = 1; i < files.size(); ++i) {
      if (files[i].revents != 0 && !accept_waiting(files[i].fd)) shortage = true;
    }
    // Waiting connections stay readable: without this pause the thread would spin.
    if (shortage) ::poll(files.data(), 1, static_cast<int>(kShortageWait.count()));
  }
}

bool Listener::accept_waiting(int socket) {
  const auto warn = [this](const char* what) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_warning_) return;
    next_warning_ = now + kWarningInterval;
    spdlog::warn("{} (RLIMIT_NOFILE bounds the number of connections)", what);
  };
  while (true) {
    const int fd = ::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno == EAGAIN) return true;
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) {
      warn(is_shortage(errno) ? "connections wait: there are no descriptors left"
                              : "connections wait: they cannot be accepted");
      return false;
    }
    if (uses_reserve_ || fd < first_reserved_descriptor()) {
      const bool is_taken = survives(ServerThread::kListener, [&] { on_connection_(fd); });
      if (!is_taken) ::close(fd);
    } else {
      warn("connections are refused: the last descriptors are kept for the server itself");
      ::close(fd);
    }
  }
}

}  // namespace lintel
