// SPDX-License-Identifier: Apache-2.0
// A RedisStorage on a real cluster: slots that move, masters that die, replicas that miss writes.
#include "tests/server/redis_lab/redis_cluster.h"

#include <set>

#include "tests/server/sessions/storage/redis/redis_storages.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;

struct ClusterStorage {
  explicit ClusterStorage(RedisCluster::Options options = {}) : cluster(options) {
    cluster.wait_until_up();
    RedisStorage::Options of_storage;
    std::string why;
    of_storage.redis.url = *parse_redis_url("redis://" + cluster.endpoints(), &why);
    of_storage.replica_id = "a";
    of_storage.lease = std::chrono::seconds(30);
    of_storage.swept_buckets = kRedisBuckets;
    of_storage.clock_difference = std::chrono::hours(24 * 365 * 200);
    storage = std::make_unique<RedisStorage>(of_storage, clock);
  }
  RedisCluster cluster;
  ManualClock clock;
  std::unique_ptr<RedisStorage> storage;
};

// Ids that lie in different buckets, and so at different masters.
std::string hex_id(int i) {
  const char* const digits = "0123456789abcdef";
  std::string id;
  for (int k = 0; k < 6; ++k) id += digits[(i * 7919 + k * 104729) >> (k * 2) & 15];
  return id + std::to_string(i);
}

TEST_CASE("sessions of a cluster are as written while slots move") {
  ClusterStorage at({.masters = 3, .replicas = 0});
  std::vector<Client> sessions;
  for (int i = 0; i < 24; ++i) sessions.emplace_back(hex_id(i));
  Writes create;
  for (Client& each : sessions) each.create(create);
  for (const Outcome outcome : create.commit_to(*at.storage)) REQUIRE(outcome == Outcome::kNone);
  std::set<std::size_t> owners;
  for (Client& each : sessions) {
    REQUIRE(each.open(*at.storage) == Outcome::kNone);
    owners.insert(at.cluster.owner_of_key(RedisKeys(redis_bucket(each.row.id)).ids));
  }
  CHECK(owners.size() > 1);
  const auto write_all = [&](std::int32_t from) {
    Writes writes;
    for (Client& each : sessions) each.append(writes, counted_from(from, 5));
    for (const Outcome outcome : writes.commit_to(*at.storage)) REQUIRE(outcome == Outcome::kNone);
  };
  write_all(0);
  // Slots of the first three go elsewhere: asked for between, and then for good.
  for (int i = 0; i < 3; ++i) {
    const auto slot = static_cast<std::uint16_t>(
        RedisKeys(redis_bucket(sessions[static_cast<std::size_t>(i)].row.id)).slot);
    const std::size_t from = at.cluster.owner_of(slot);
    const std::size_t to = (from + 1) % 3;
    if (i == 0) {
      at.cluster.begin_move(slot, to);
      at.cluster.move_keys(slot, to);
      write_all(100);
      at.cluster.end_move(slot, to);
    } else {
      at.cluster.move_slot(slot, to);
    }
    write_all(200 + i * 10);
  }
  CHECK(at.storage->health().redirects > 0);
  Writes end;
  for (Client& each : sessions) each.end(end);
  for (const Outcome outcome : end.commit_to(*at.storage)) REQUIRE(outcome == Outcome::kNone);
  for (Client& each : sessions) CHECK(each.difference(*at.storage) == "");
  CHECK(at.storage->list("digits", "", 100, {}).size() == sessions.size());
}

TEST_CASE("a killed master loses no acknowledged write, and its sessions continue") {
  ClusterStorage at;
  std::vector<Client> sessions;
  for (int i = 0; i < 12; ++i) sessions.emplace_back(hex_id(i));
  Writes create;
  for (Client& each : sessions) each.create(create);
  for (const Outcome outcome : create.commit_to(*at.storage)) REQUIRE(outcome == Outcome::kNone);
  for (Client& each : sessions) REQUIRE(each.open(*at.storage) == Outcome::kNone);
  const auto slot = static_cast<std::uint16_t>(RedisKeys(redis_bucket(sessions[0].row.id)).slot);
  const std::size_t master = at.cluster.owner_of(slot);
  const auto append_all = [&](std::int32_t from) {
    std::size_t done = 0;
    for (Client& each : sessions) {
      REQUIRE(eventually([&] {
        Client next(each);
        Writes writes;
        next.append(writes, counted_from(from, 4));
        if (writes.commit_to(*at.storage).front() != Outcome::kNone) return false;
        each = next;
        ++done;
        return true;
      }));
    }
  };
  append_all(0);
  at.cluster.node(master).kill();
  append_all(40);
  append_all(80);
  for (Client& each : sessions) {
    REQUIRE(eventually([&] {
      Client next(each);
      Writes end;
      next.end(end);
      if (end.commit_to(*at.storage).front() != Outcome::kNone) return false;
      each = next;
      return true;
    }));
    CHECK(each.difference(*at.storage) == "");
  }
  CHECK(at.storage->health().reconnects > 0);
}

TEST_CASE("a write that no replica has in time is not acknowledged, and is when one has it again") {
  ClusterStorage at;
  Client session(hex_id(1));
  REQUIRE(commit_one(*at.storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*at.storage) == Outcome::kNone);
  const auto slot = static_cast<std::uint16_t>(RedisKeys(redis_bucket(session.row.id)).slot);
  const std::size_t replica = at.cluster.replica_of(at.cluster.owner_of(slot));
  at.cluster.node(replica).pause();
  Client late(session);
  CHECK(commit_one(*at.storage, [&](Writes& to) { late.append(to, counted_from(0, 3)); }) ==
        Outcome::kStoreAway);
  CHECK(eventually([&] { return at.storage->health().short_waits >= 1; }));  // counted a turn later
  at.cluster.node(replica).resume();
  REQUIRE(eventually([&] {
    Client next(session);
    Writes writes;
    next.append(writes, counted_from(0, 5));
    if (writes.commit_to(*at.storage).front() != Outcome::kNone) return false;
    session = next;
    return true;
  }));
  REQUIRE(commit_one(*at.storage, [&](Writes& to) { session.end(to); }) == Outcome::kNone);
  CHECK(session.difference(*at.storage) == "");
}

TEST_CASE("a master that took over waits for its replica as soon as that is back") {
  ClusterStorage at;
  Client session(hex_id(1));
  REQUIRE(commit_one(*at.storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*at.storage) == Outcome::kNone);
  const auto append = [&](Client& to) {
    return commit_one(*at.storage, [&](Writes& writes) { to.append(writes, counted_from(0, 3)); });
  };
  const auto slot = static_cast<std::uint16_t>(RedisKeys(redis_bucket(session.row.id)).slot);
  const std::size_t first = at.cluster.owner_of(slot);
  at.cluster.node(first).kill();
  at.cluster.wait_for_successor(slot, first);
  // While it has none it is written to all the same.
  REQUIRE(eventually([&] {
    Client next(session);
    if (append(next) != Outcome::kNone) return false;
    session = next;
    return true;
  }));
  at.cluster.node(first).start();
  at.cluster.wait_until_up();
  REQUIRE(at.cluster.replica_of(at.cluster.owner_of(slot)) == first);
  // Without it, and before the master notices that it is gone, nothing counts as written.
  const auto is_soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < is_soon) {
    Client next(session);  // time passes; a busy machine's replica may be late
    if (append(next) == Outcome::kNone) session = next;
  }
  at.cluster.node(first).pause();
  Client late(session);
  CHECK(append(late) == Outcome::kStoreAway);
  at.cluster.node(first).resume();
}

}  // namespace
}  // namespace lintel::testing
