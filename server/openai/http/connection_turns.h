// SPDX-License-Identifier: Apache-2.0
// ConnectionTurns: the responses that a connection keeps because they are not stored.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace lintel {

// Each is kept as its whole conversation, so that it is continued without earlier ones. The oldest
// are dropped at a bound. Used by one thread at a time.
class ConnectionTurns {
 public:
  static constexpr std::size_t kMostTurns = 64;
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;
  static constexpr std::size_t kMostBytesOfAll = std::size_t{256} << 20;

  // all_bytes: of all connections together.
  explicit ConnectionTurns(std::shared_ptr<std::atomic<std::size_t>> all_bytes)
      : all_bytes_(std::move(all_bytes)) {}
  ~ConnectionTurns();
  ConnectionTurns(const ConnectionTurns&) = delete;
  ConnectionTurns& operator=(const ConnectionTurns&) = delete;

  // The items up to a response, including its own, a list as JSON; nothing: it is not kept.
  std::optional<std::string> find(const std::string& id) const;
  // Keeps a response. items: a list as JSON, which continues that of `previous` if that is kept.
  // Drops the oldest to make room; if that does not suffice it is not kept.
  void add(const std::string& id, const std::string& previous, const std::string& items);
  void forget(const std::string& id);

 private:
  struct Turn {
    std::string id, items;
  };
  void drop(std::deque<Turn>::iterator turn);

  const std::shared_ptr<std::atomic<std::size_t>> all_bytes_;
  std::deque<Turn> turns_;  // the oldest first
  std::size_t bytes_ = 0;
};

}  // namespace lintel
