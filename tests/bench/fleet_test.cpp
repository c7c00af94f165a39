// SPDX-License-Identifier: Apache-2.0
// The fleet that is computed: small ones by hand, and large ones against what is known of their
// balancers.
#include <map>
#include <numeric>

#include "bench/fleet_model.h"
#include "tests/bench/bench_program.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::testing {

using namespace lintel::bench;

TEST_CASE("a ring of two replicas is cut where their entries lie") {
  const ReplicaNames names = replica_names(2);
  CHECK(names[1] == "10.0.0.1:50051");
  const auto ring = ring_hash(names, 2, 2);  // an entry each
  const std::vector<double> shares = ring->shares();
  CHECK(shares[0] + shares[1] == Approx(1));
  std::map<std::uint32_t, int> hits;
  for (std::uint64_t i = 0; i < 1000; ++i) ++hits[ring->replica_of(i << 54)];
  CHECK(hits[0] / 1000.0 == Approx(shares[0]).margin(0.01));
  CHECK(ring_hash(replica_names(1), 1, 1)->shares()[0] == 1);
}

TEST_CASE("a ring's shares are those that its sessions get") {
  const auto ring = ring_hash(replica_names(7), 64, 64);
  std::vector<double> got(7);
  constexpr int kHashes = 1 << 16;
  for (std::uint64_t i = 0; i < kHashes; ++i) got[ring->replica_of(i << 48)] += 1.0 / kHashes;
  for (int i = 0; i < 7; ++i) CHECK(got[i] == Approx(ring->shares()[i]).margin(0.002));
}

TEST_CASE("Maglev gives each replica a place more or less than the others") {
  const std::vector<double> shares = maglev(replica_names(7), 31)->shares();
  CHECK(std::accumulate(shares.begin(), shares.end(), 0.0) == Approx(1));
  for (const double share : shares) CHECK((share == Approx(4.0 / 31) || share == Approx(5.0 / 31)));
}

TEST_CASE("sessions of replicas that stay do not move on a ring, and those of one that goes do") {
  const ReplicaNames names = replica_names(10);
  const auto make = [](const ReplicaNames& some) {
    return ring_hash(some, some.size() * 100, some.size() * 100);
  };
  const auto before = make(names);
  const auto after = make({names.begin(), names.end() - 1});
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::uint64_t hash = i * 0x9E3779B97F4A7C15;
    if (before->replica_of(hash) != 9) CHECK(before->replica_of(hash) == after->replica_of(hash));
  }
  CHECK(moved_share(names, make, 1, 1) == Approx(0.1).margin(0.03));
}

TEST_CASE("balancers of 1,000 replicas are as uneven as they are known to be") {
  const ReplicaNames names = replica_names(1000);
  const auto small = [](const ReplicaNames& some) { return ring_hash(some, 4096, 4096); };
  const auto large = [](const ReplicaNames& some) { return ring_hash(some, 131'072, 8'388'608); };
  const auto places = [](const ReplicaNames& some) { return maglev(some); };
  constexpr std::size_t kSessions = 200'000;
  CHECK(spread_of(*small(names), kSessions, 1).fullest_running == Approx(3.4).margin(0.6));
  CHECK(spread_of(*large(names), kSessions, 1).fullest_running == Approx(1.34).margin(0.1));
  CHECK(spread_of(*places(names), kSessions, 1).fullest_running == Approx(1.23).margin(0.08));
  CHECK(spread_of(*places(names), kSessions, 1).fullest_share < 1.02);
  CHECK(100 * moved_share(names, large, 1, 1) == Approx(0.1).margin(0.04));
  CHECK(100 * moved_share(names, places, 1, 1) == Approx(0.7).margin(0.3));
}

TEST_CASE("the store's load is what a hand computes") {
  FleetPlan plan{.idle_sessions = 50e6, .calls_per_second = 100e3, .call_seconds = 0.64};
  plan.session_bytes = 1503;
  plan.script_seconds = 6e-6;
  plan.scripts_per_call = 2;
  const StoreLoad input = store_load(plan, StoreLevel::kInput);
  CHECK(input.running == Approx(64e3));
  CHECK(input.scripts_per_second == Approx(264e3));
  CHECK(input.bytes == Approx(75e9).epsilon(0.01));
  CHECK(input.masters == 12);
  CHECK(input.scripts_per_master == Approx(22e3));
  CHECK(input.core_share == Approx(0.13).margin(0.005));
  // 12.8 million writes and the calls' own.
  const StoreLoad token = store_load(plan, StoreLevel::kToken);
  CHECK(token.scripts_per_second == Approx(13e6));
  CHECK(token.masters == 156);  // for their cores: 13e6 x 6 us are 78 of them, each half busy

  const StoreLoad one = store_load({.idle_sessions = 10, .calls_per_second = 1}, StoreLevel::kCall);
  CHECK(one.keys == 20);
  CHECK(one.masters == 1);
}

TEST_CASE("fleet prints where sessions go and what the store bears") {
  const Bench bench;
  const std::string idle = runs_every_case() ? "1e6" : "1e5";
  const Result result = bench.succeed(
      {"fleet", "--replicas", "10,20", "--idle", idle, "--calls", "1e4", "--repeats", "1"});
  CHECK(result.out.find("Where sessions go") != std::string::npos);
  CHECK(result.out.find("20, Maglev, 65,537 places") != std::string::npos);
  CHECK(result.out.find("| token |") != std::string::npos);
}

}  // namespace lintel::testing
