// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/redis_failures/failing_cluster.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

namespace lintel::testing {
namespace {

constexpr std::size_t kKinds = 16;  // of failures, the likelier ones several times

RedisCluster::Options options(const std::string& fsync) {
  RedisCluster::Options options;
  options.node_timeout = std::chrono::milliseconds(500);
  options.has_proxies = true;
  options.arguments = {"--appendfsync", fsync};
  return options;
}

}  // namespace

FailingCluster::FailingCluster(std::uint64_t seed, const std::string& fsync, bool restarts)
    : random_(static_cast<std::minstd_rand::result_type>(seed + 17)),
      cluster_(options(fsync)),
      restarts_(restarts) {}

std::chrono::milliseconds FailingCluster::draw(int least, int most) {
  return std::chrono::milliseconds(
      least + static_cast<int>(random_() % static_cast<unsigned>(most - least)));
}

int FailingCluster::next_kind() {
  if (deck_.empty()) {
    deck_.resize(kKinds);
    std::iota(deck_.begin(), deck_.end(), 0);
    for (std::size_t i = deck_.size() - 1; i > 0; --i)
      std::swap(deck_[i], deck_[random_() % (i + 1)]);
  }
  const int kind = deck_.back();
  deck_.pop_back();
  return kind;
}

void FailingCluster::fail() {
  const auto slot = static_cast<std::uint16_t>(random_() % 16384);
  const std::size_t master = cluster_.owner_of(slot);
  const std::size_t replica = cluster_.replica_of(master);
  const auto pause = [&](std::size_t node) {
    cluster_.node(node).pause();
    std::this_thread::sleep_for(draw(20, 300));  // the failure is this long
    cluster_.node(node).resume();
  };
  const auto note = [&](const std::string& what) {
    ++failures_[what];
    last_ = what;
  };
  switch (next_kind()) {
    case 0:
      note("master killed, its replica takes over");
      cluster_.node(master).kill();
      cluster_.wait_for_successor(slot, master);
      cluster_.node(master).start();
      break;
    case 1:
      note("master stands still, its replica takes over, it wakes");
      cluster_.node(master).pause();
      cluster_.wait_for_successor(slot, master);
      cluster_.node(master).resume();
      break;
    case 2:
      note("master cut off with the writers on its side, its replica takes over");
      cluster_.partition({master}, RedisCluster::Clients::kSeeThese);
      cluster_.wait_for_successor(slot, master);
      cluster_.heal();
      break;
    case 3:
      note("master cut off from the others and the writers, its replica takes over");
      cluster_.partition({master}, RedisCluster::Clients::kSeeOthers);
      cluster_.wait_for_successor(slot, master);
      cluster_.heal();
      break;
    case 4:
    case 5:
    case 6:
      if (!restarts_) {
        note("replica takes over by force");
        cluster_.fail_over_to(replica, /*by_force=*/true);
        break;
      }
      note("master killed and started");
      cluster_.node(master).kill();
      cluster_.node(master).start();
      break;
    case 7:
    case 8:
    case 9:
      note("replica takes over in agreement");
      cluster_.fail_over_to(replica);
      break;
    case 10:
    case 11:
      note("replica takes over by force");
      cluster_.fail_over_to(replica, /*by_force=*/true);
      break;
    case 12:
    case 13:
      note("master stands still for a moment");
      pause(master);
      break;
    case 14:
      note("replica stands still for a moment");
      pause(replica);
      break;
    default:
      note("replica killed and started");
      cluster_.node(replica).kill();
      cluster_.node(replica).start();
      break;
  }
  cluster_.wait_until_up();
}

}  // namespace lintel::testing
