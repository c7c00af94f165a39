// SPDX-License-Identifier: Apache-2.0
// Storages on a Redis server, as servers of several names have them.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "server/sessions/storage/redis/redis_storage.h"
#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/sessions/storage/storage_calls.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {

inline RedisStorage::Options storage_options(const std::string& replica, const Endpoint& server) {
  RedisStorage::Options options;
  options.redis.url.servers = {{server.address, server.port}};
  options.replica_id = replica;
  options.swept_buckets = kRedisBuckets;
  options.clock_difference = std::chrono::hours(24 * 365 * 200);  // the clock is the test's
  return options;
}

inline std::vector<std::int32_t> counted_from(std::int32_t from, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = from + static_cast<std::int32_t>(i);
  return tokens;
}

// A session's keys as they are now, to put them back: what a failover to a stale replica does.
class Backup {
 public:
  Backup(RedisClient client, const std::string& id) : client_(std::move(client)) {
    const RedisKeys keys(redis_bucket(id));
    names_ = {keys.session(id), keys.tokens(id)};
    for (const std::string& name : names_) dumps_.push_back(client_.ask({"DUMP", name}));
  }
  void restore() {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      client_.ask({"DEL", names_[i]});
      if (dumps_[i].kind != RedisReply::Kind::kText) continue;
      client_.ask({"RESTORE", names_[i], "0", dumps_[i].text});
    }
  }

 private:
  RedisClient client_;
  std::vector<std::string> names_;
  std::vector<RedisReply> dumps_;
};

}  // namespace lintel::testing
