// SPDX-License-Identifier: Apache-2.0
// Listener: takes the server's connections, also when descriptors run out.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "server/core/listen_address.h"

namespace lintel {

// gRPC's own listener stops for good at the first connection for which there is no descriptor, and
// the process then serves no client while it looks well. This one waits and continues; it keeps the
// last descriptors for the server itself (files that are read again, metrics, models): a connection
// that would need one of them is closed at once, so that its client notices.
//
// Threads: one starts and stops it.
class Listener {
 public:
  // Listens on every address the host has. keepalive_timeout: how long what was sent may stay
  // unacknowledged before a connection is given up. Throws std::runtime_error.
  // `uses_reserve`: its connections may have the last descriptors: probes, of which there are few.
  Listener(const ListenAddress& address, std::chrono::milliseconds keepalive_timeout,
           bool uses_reserve = false);
  ~Listener();  // stop()
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }  // 0 of a unix socket

  // Begins to hand over connections, from a thread of its own. on_connection owns the descriptor.
  // REQUIRES: called once.
  void start(std::function<void(int fd)> on_connection);
  // Takes no more; what was handed over is untouched. Idempotent.
  void stop();

 private:
  void listen_on_unix_socket();
  void remove_unix_socket() const;
  void listen_on_host();
  void accept_all();
  // Takes what waits on this socket. Returns false where descriptors or memory are short.
  bool accept_waiting(int socket);

  const ListenAddress address_;
  const std::chrono::milliseconds keepalive_timeout_;
  const bool uses_reserve_;
  int port_ = 0;
  struct stat unix_socket_ {};  // as it was made
  std::vector<int> sockets_;
  int stop_event_ = -1;  // an eventfd
  std::function<void(int fd)> on_connection_;
  std::thread thread_;
  std::chrono::steady_clock::time_point next_warning_{};  // of the thread
};

}  // namespace lintel
