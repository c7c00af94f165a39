// SPDX-License-Identifier: Apache-2.0
// What the lab promises of a cluster: tests of the storage lean on it.
#include "tests/server/redis_lab/redis_cluster.h"

#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

// A key that lives with this master at first.
std::string key_of(RedisCluster& cluster, std::size_t master) {
  for (int i = 0;; ++i) {
    const std::string key = "{" + std::to_string(i) + "}";
    if (cluster.owner_of_key(key) == master) return key;
  }
}

}  // namespace

TEST_CASE("slot_of gives the slots that Redis computes") {
  RedisServer server;
  RedisClient client = server.client();
  CHECK(RedisCluster::slot_of("123456789") == 0x31C3);  // of the specification
  CHECK(RedisCluster::slot_of("a{tag}b") == RedisCluster::slot_of("tag"));
  CHECK(RedisCluster::slot_of("{}b") != RedisCluster::slot_of(""));
}

TEST_CASE("a cluster serves every slot, and a killed master is followed by its replica") {
  RedisCluster cluster;
  REQUIRE(cluster.size() == 6);
  const std::string key = key_of(cluster, 1);
  cluster.client(1)("SET " + key + " value");
  CHECK(cluster.client(1)("WAIT 1 5000").integer == 1);
  CHECK(cluster.client(0).ask({"GET", key}).text.starts_with("MOVED"));
  CHECK(cluster.replica_of(1) == 4);

  cluster.node(1).kill();
  CHECK(cluster.wait_for_successor(RedisCluster::slot_of(key), 1) == 4);
  CHECK(cluster.client(4)("GET " + key).text == "value");
  cluster.node(1).start();
  cluster.wait_until_up();
  CHECK(cluster.master_of(1) == 4);

  cluster.fail_over_to(1);  // back, in agreement
  cluster.wait_until_up();
  CHECK(cluster.owner_of_key(key) == 1);
}

TEST_CASE("a slot that moves between masters answers ASK, then MOVED") {
  RedisCluster cluster({.replicas = 0});
  const std::string key = key_of(cluster, 0);
  const std::uint16_t slot = RedisCluster::slot_of(key);
  RedisClient old = cluster.client(0);
  old("SET " + key + "first 1");
  old("SET " + key + "second 2");
  cluster.begin_move(slot, 2);
  CHECK(cluster.move_keys(slot, 2, 1) == 1);
  int asked = 0;
  for (const char* const name : {"first", "second"}) {
    asked += old.ask({"GET", key + name}).text.starts_with("ASK");
  }
  CHECK(asked == 1);
  CHECK(cluster.move_keys(slot, 2) == 1);
  cluster.end_move(slot, 2);
  CHECK(old.ask({"GET", key + "first"}).text.starts_with("MOVED"));
  CHECK(cluster.client(2)("GET " + key + "first").text == "1");
}

TEST_CASE("a master that is cut off with its clients accepts writes that are lost") {
  RedisCluster cluster({.has_proxies = true});
  const std::string key = key_of(cluster, 0);
  RedisClient client(cluster.endpoint(0));
  client("SET " + key + " kept");
  CHECK(client("WAIT 1 5000").integer == 1);
  cluster.partition({0}, RedisCluster::Clients::kSeeThese);
  CHECK(client("SET " + key + " lost").text == "OK");
  CHECK(client("WAIT 1 100").integer == 0);  // which reveals the loss
  CHECK_THROWS(RedisClient(cluster.endpoint(1), std::chrono::milliseconds(50))("PING"));
  CHECK(cluster.wait_for_successor(RedisCluster::slot_of(key), 0) == 3);
  CHECK(cluster.client(3)("GET " + key).text == "kept");
  cluster.heal();
  cluster.wait_until_up();
  CHECK(cluster.client(3)("GET " + key).text == "kept");
  CHECK(cluster.master_of(0) == 3);
}

}  // namespace lintel::testing
