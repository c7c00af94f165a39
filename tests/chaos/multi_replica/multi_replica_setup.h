// SPDX-License-Identifier: Apache-2.0
// MultiReplicaSetup: two replicas, their store and the network between, and what happens to them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/chaos/multi_replica/replica_process.h"
#include "tests/server/redis_lab/redis_cluster.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

class MultiReplicaSetup {
 public:
  struct Options {
    std::uint64_t seed = 1;
    bool cluster = false;  // a Redis Cluster of six, else one Redis
  };
  explicit MultiReplicaSetup(Options options);

  std::vector<std::string> addresses() const;
  // One thing that goes wrong, and is mended when it returns.
  void strike();
  // Ends the replicas; returns what they wrote that did not end as they should.
  std::vector<std::string> stop();

  struct Strike {
    std::chrono::milliseconds at{0}, took{0};  // since the beginning
    std::string what;
    std::optional<std::size_t> which{};  // replica; nothing: the store itself
  };
  const std::vector<Strike>& strikes() const { return strikes_; }
  // Redis's statistics of its scripts since it was started last.
  std::string script_cost();
  // Copies the replicas' logs and the file of commands of the one Redis.
  void keep(const std::filesystem::path& to) const;

 private:
  void note(const std::string& what, std::optional<std::size_t> which = {});
  void strike_server(std::size_t which);
  void strike_cluster();

  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::optional<RedisServer> server_;
  std::optional<RedisCluster> cluster_;
  std::vector<std::unique_ptr<TcpProxy>> networks_;  // of each replica, to server_
  std::vector<std::unique_ptr<ReplicaProcess>> replicas_;
  std::vector<Strike> strikes_;
};

}  // namespace lintel::testing
