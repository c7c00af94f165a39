// SPDX-License-Identifier: Apache-2.0
// An HTTP proxy that knows CONNECT, and notes who asked it for what.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lintel::testing {

// Connects every tunnel to one server, regardless of the requested name: a name without a server
// can stand for another machine.
class ConnectProxy {
 public:
  explicit ConnectProxy(const std::string& server);  // "127.0.0.1:PORT"
  ~ConnectProxy();

  const std::string& address() const { return address_; }
  // "CONNECT HOST:PORT" of each connection, in their order.
  std::vector<std::string> asked() const;

 private:
  void accept_all();
  void serve(int client);

  const std::string server_;
  std::string address_;
  int listener_ = -1;
  mutable std::mutex mutex_;
  std::vector<std::string> asked_;    // guarded by mutex_
  std::vector<int> open_;             // guarded by mutex_
  std::vector<std::thread> tunnels_;  // of the thread that accepts, then of the destructor
  std::thread accepting_;
};

}  // namespace lintel::testing
