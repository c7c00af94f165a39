// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/tcp_proxy.h"

#include "tests/server/redis_lab/redis_server.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

constexpr std::chrono::milliseconds kSoon{50};  // for silence that is expected

struct ProxiedRedis {
  RedisServer server;
  TcpProxy proxy{server.endpoint()};
  RedisClient direct = server.client();

  RedisClient through(std::chrono::milliseconds patience = std::chrono::seconds(5)) {
    return RedisClient(proxy.endpoint(), patience);
  }
};

}  // namespace

TEST_CASE("a proxy passes requests and answers on by default") {
  ProxiedRedis redis;
  RedisClient client = redis.through();
  const std::string large(3'000'000, 'x');
  CHECK(client.ask({"SET", "large", large}).text == "OK");
  CHECK(client.ask({"GET", "large"}).text == large);
  CHECK(redis.proxy.connections() == 1);
}

TEST_CASE("bytes sent into a cut network arrive when it is healed") {
  ProxiedRedis redis;
  RedisClient client = redis.through(kSoon);
  client("SET key old");
  redis.proxy.cut();
  CHECK_THROWS(client("SET key new"));
  CHECK_THROWS(redis.through(kSoon)("PING"));  // connecting meets silence
  CHECK(redis.direct("GET key").text == "old");
  redis.proxy.heal();
  CHECK(eventually([&] { return redis.direct("GET key").text == "new"; }));
}

TEST_CASE("a network can be cut one way") {
  ProxiedRedis redis;
  RedisClient client = redis.through(kSoon);
  client("SET key old");
  redis.proxy.cut_answers();
  CHECK_THROWS(client("SET key new"));
  CHECK(eventually([&] { return redis.direct("GET key").text == "new"; }));
  redis.proxy.heal();

  RedisClient another = redis.through(kSoon);
  another("PING");
  redis.proxy.cut_requests();
  CHECK_THROWS(another("SET key newest"));
  CHECK(redis.direct("GET key").text == "new");
}

TEST_CASE("a network can be cut for one address alone") {
  ProxiedRedis redis;
  redis.proxy.cut_from("127.0.0.9");
  redis.through()("PING");
  redis.proxy.cut_from("127.0.0.1");
  CHECK_THROWS(redis.through(kSoon)("PING"));
}

TEST_CASE("an answer is lost after its request went through") {
  ProxiedRedis redis;
  RedisClient client = redis.through();
  redis.proxy.lose_answer_to("INCR");
  client("SET other 1");
  CHECK_THROWS(client("INCR counter"));
  CHECK(redis.direct("GET counter").text == "1");
  CHECK(redis.proxy.lost_answers() == 1);
  CHECK(redis.through()("INCR counter").integer == 2);  // once only
}

TEST_CASE("a slow network has the delay that the test sets") {
  ProxiedRedis redis;
  RedisClient client = redis.through();
  client("PING");
  redis.proxy.delay(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  client("PING");
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(40));
}

TEST_CASE("the proxy resets connections when its machine is gone") {
  ProxiedRedis redis;
  RedisClient client = redis.through();
  client("PING");
  redis.proxy.refuse();
  CHECK_THROWS(client("PING"));
  CHECK_THROWS(redis.through()("PING"));
  redis.proxy.heal();
  RedisClient again = redis.through();
  again("PING");
  redis.proxy.reset();
  CHECK_THROWS(again("PING"));
  redis.through()("PING");
}

}  // namespace lintel::testing
