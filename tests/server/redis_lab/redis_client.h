// SPDX-License-Identifier: Apache-2.0
// A plain client of one Redis server, for what tests ask and arrange. It shares no code with the
// server's own client, so that one cannot hide the other's mistakes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/redis_lab/sockets.h"

namespace lintel::testing {

struct RedisReply {
  enum class Kind { kText, kError, kInteger, kNull, kArray } kind = Kind::kNull;
  std::string text;  // of kText and kError
  std::int64_t integer = 0;
  std::vector<RedisReply> elements;

  bool is_error() const { return kind == Kind::kError; }
  std::string shown() const;  // for messages
};

// One connection. Not for several threads at once.
class RedisClient {
 public:
  // Throws std::system_error where no server listens. `patience`: how long an answer is waited for.
  explicit RedisClient(const Endpoint& server,
                       std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~RedisClient();
  RedisClient(RedisClient&& other) noexcept;
  RedisClient(const RedisClient&) = delete;
  RedisClient& operator=(const RedisClient&) = delete;

  // Sends a command and reads its answer, errors among them. Throws std::runtime_error where the
  // connection ends or nothing comes in time.
  RedisReply ask(const std::vector<std::string>& command);
  // The same, by its words; throws std::runtime_error if the answer is an error.
  RedisReply operator()(std::string_view words);

 private:
  void read_more();
  std::string read_line();
  std::string read_bytes(std::size_t count);
  RedisReply read_reply();

  int socket_ = -1;
  std::string name_, unread_;
};

}  // namespace lintel::testing
