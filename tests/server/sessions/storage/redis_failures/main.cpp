// SPDX-License-Identifier: Apache-2.0
// store_failures: counts what the failures of a Redis Cluster cost those who write sessions.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/sessions/storage/redis/redis_storage.h"
#include "tests/server/sessions/storage/redis_failures/failing_cluster.h"
#include "tests/server/sessions/storage/redis_failures/written_session.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

struct Flags {
  int failures = 20;
  int writers = 8;
  std::uint64_t seed = 1;
  std::optional<int> wait_replicas;
  std::string fsync = "everysec";
  bool restarts = false;
  int seconds = 24 * 3600;
};

std::unique_ptr<RedisStorage> storage_at(RedisCluster& cluster, const std::string& name,
                                         const Flags& flags, const Clock& clock) {
  RedisStorage::Options options;
  std::string why;
  options.redis.url = *parse_redis_url("redis://" + cluster.endpoints(), &why);
  options.redis.wait_replicas = flags.wait_replicas;
  options.replica_id = name;
  return std::make_unique<RedisStorage>(options, clock);
}

int run(const Flags& flags) {
  const auto began = std::chrono::steady_clock::now();
  FailingCluster field(flags.seed, flags.fsync, flags.restarts);
  ManualClock clock;
  const auto a = storage_at(field.cluster(), "a", flags, clock);
  const auto b = storage_at(field.cluster(), "b", flags, clock);
  Tally tally;
  std::vector<std::unique_ptr<WritingSessions>> all;
  for (int i = 0; i < flags.writers; ++i) {
    all.push_back(
        std::make_unique<WritingSessions>(i, flags.seed * 1000 + static_cast<std::uint64_t>(i),
                                          std::vector<SessionStorage*>{a.get(), b.get()}, tally));
  }
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (const auto& each : all) threads.emplace_back([&] { each->run(over); });
  int done = 0;
  try {
    const auto end = began + std::chrono::seconds(flags.seconds);
    for (; done < flags.failures && tally.wrong().empty(); ++done) {
      if (std::chrono::steady_clock::now() > end) break;
      // The next one hits writers at work.
      const std::uint64_t before = tally.acknowledged;
      while (tally.acknowledged < before + 100 && tally.wrong().empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // between polls
      }
      field.fail();
      if (done % 100 == 99) std::cout << done + 1 << " failures" << std::endl;
    }
  } catch (const std::exception& error) {
    tally.is_wrong(std::string("the cluster: ") + error.what());
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : all) each->check_all();

  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cout << done << " failures in " << static_cast<int>(took.count()) << " s\n";
  for (const auto& [what, count] : field.failures()) {
    std::cout << "  " << count << " x " << what << "\n";
  }
  const auto health = [&](auto count) { return count(a->health()) + count(b->health()); };
  using Health = SessionStorage::Health;
  std::cout << tally.acknowledged << " writes of " << tally.tokens << " tokens in "
            << tally.sessions << " sessions were acknowledged, " << tally.unanswered
            << " tries were not, " << tally.refused << " were refused; "
            << health([](const Health& h) { return h.healed; }) << " sessions were healed, "
            << health([](const Health& h) { return h.short_waits; })
            << " times too few replicas had what was written in time\n"
            << tally.stale << " claims were made at a master that was none any more\n"
            << tally.rolled_back << " sessions had lost what was acknowledged\n";
  if (!tally.wrong().empty()) {
    std::cout << "FAILED: --seed " << flags.seed << "; the last failure: " << field.last() << "\n";
  }
  return tally.wrong().empty() ? 0 : 1;
}

}  // namespace
}  // namespace lintel::testing

int main(int argc, char** argv) {
  using namespace lintel::testing;
  signal(SIGPIPE, SIG_IGN);
  redis_server_binary();  // or skipped
  Flags flags;
  CLI::App app("Sessions are written while the Redis Cluster under them fails.");
  app.add_option("--failures", flags.failures, "How many, one after the other [20]");
  app.add_option("--writers", flags.writers, "Sessions that are written at a time [8]");
  app.add_option("--seed", flags.seed, "Of all that is drawn [1]");
  app.add_option("--wait-replicas", flags.wait_replicas,
                 "Replicas that must have a write [1 where there are any]");
  app.add_option("--fsync", flags.fsync, "appendfsync of the Redis servers [everysec]")
      ->check(CLI::IsMember({"always", "everysec", "no"}));
  app.add_option("--seconds", flags.seconds, "No more failures after so long");
  app.add_flag("--restarts", flags.restarts,
               "Masters are also started again before their replicas take over");
  CLI11_PARSE(app, argc, argv);
  return run(flags);
}
