// SPDX-License-Identifier: Apache-2.0
// A server that speaks the protocol of Redis and sends the answers that the test sets, also invalid
// ones.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/server/redis_lab/sockets.h"

namespace lintel::testing {

class FakeRedis {
 public:
  using Command = std::vector<std::string>;
  // Returns whether the client is still there.
  using Send = std::function<bool(std::string_view bytes)>;
  // Answers a command; called by the thread of its connection.
  using Answer = std::function<void(const Command& command, const Send& send)>;

  explicit FakeRedis(Answer answer);
  ~FakeRedis();
  FakeRedis(const FakeRedis&) = delete;
  FakeRedis& operator=(const FakeRedis&) = delete;

  Endpoint endpoint() const { return endpoint_; }

  // The answer to INFO of a master that sessions may be kept on.
  static std::string good_info();
  static std::string bulk(std::string_view text);

 private:
  void accept_all();
  void serve(int socket);

  const Answer answer_;
  const int listener_;
  const Endpoint endpoint_;
  std::atomic<bool> is_closing_{false};
  std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread accepting_;  // last: it uses the rest
};

}  // namespace lintel::testing
