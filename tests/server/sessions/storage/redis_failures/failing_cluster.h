// SPDX-License-Identifier: Apache-2.0
// FailingCluster: a Redis Cluster that fails on command and is repaired afterwards.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/server/redis_lab/redis_cluster.h"

namespace lintel::testing {

// Three masters, a replica each; clients and nodes meet through proxies.
class FailingCluster {
 public:
  // fsync: of their files of commands. restarts: masters are also killed and started again before
  // their replicas take over: then what counts is what their files have, not what replicas have.
  FailingCluster(std::uint64_t seed, const std::string& fsync, bool restarts);

  RedisCluster& cluster() { return cluster_; }
  // One failure of one master or its replica, drawn from the seed. When it returns all slots are
  // served and replicas are in step, so that the next one finds no trace of it.
  void fail();
  const std::map<std::string, int>& failures() const { return failures_; }  // the number of each
  const std::string& last() const { return last_; }

 private:
  int next_kind();
  std::chrono::milliseconds draw(int least, int most);

  std::minstd_rand random_;
  std::vector<int> deck_;  // kinds of failures that are to come, each once before any comes again
  RedisCluster cluster_;
  const bool restarts_;
  std::map<std::string, int> failures_;
  std::string last_;
};

}  // namespace lintel::testing
