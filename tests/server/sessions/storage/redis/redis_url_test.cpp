// SPDX-License-Identifier: Apache-2.0
// Which servers a redis:// address means, and which it refuses.
#include "server/sessions/storage/redis/redis_client.h"
#include "server/sessions/storage/redis/redis_servers.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("an address of Redis is one server or several, plain or TLS") {
  std::string why;
  const auto one = parse_redis_url("redis://cache.example:7000", &why);
  REQUIRE(one);
  CHECK(one->servers == std::vector<RedisAddress>{{"cache.example", 7000}});
  CHECK_FALSE(one->is_encrypted);
  const auto many = parse_redis_url("rediss://a,b:7001,[::1]:7002,[fe80::2]", &why);
  REQUIRE(many);
  CHECK(many->is_encrypted);
  CHECK(many->servers ==
        std::vector<RedisAddress>{{"a", 6379}, {"b", 7001}, {"::1", 7002}, {"fe80::2", 6379}});
  CHECK(to_string(many->servers[2]) == "[::1]:7002");
  for (const char* wrong :
       {"redis://", "redis://:7000", "redis://a:", "redis://a:0", "redis://a:65536", "redis://a:1,",
        "redis://a:x", "redis://a:1:2", "redis://[::1", "redis://[]:1", "redis://a/3",
        "redis://a b", "redis://me:pass@a:1", "http://a:1"}) {
    CAPTURE(wrong);
    why.clear();
    CHECK_FALSE(parse_redis_url(wrong, &why));
    CHECK_FALSE(why.empty());
  }
  CHECK_FALSE(is_redis_url("/var/lib/redis"));
}

TEST_CASE("slots of keys are those of the cluster's specification") {
  CHECK(redis_slot("123456789") == 0x31c3 % 16384);
  CHECK(redis_slot("{user1000}.following") == redis_slot("{user1000}.followers"));
  CHECK(redis_slot("foo{}{bar}") == redis_slot("foo{}{bar}"));
  CHECK(redis_slot("foo{{bar}}zap") == redis_slot("{bar"));
  CHECK(redis_slot("foo{bar}{zap}") == redis_slot("bar"));
}

TEST_CASE("a server that would throw sessions away, or is too old, cannot keep them") {
  const auto judged = [](const std::string& version, const std::string& policy) {
    return unusable(parse_redis_info("# Server\r\nredis_version:" + version +
                                     "\r\nrole:master\r\nmaxmemory_policy:" + policy + "\r\n"));
  };
  CHECK(judged("7.0.15", "noeviction").empty());
  CHECK(judged("10.1.0", "noeviction").empty());
  CHECK(judged("6.2.7", "noeviction").find("7.0 is needed") != std::string::npos);
  CHECK(judged("7.2.4", "allkeys-lru").find("noeviction is needed") != std::string::npos);
  CHECK(judged("7.2.4", "volatile-ttl").find("volatile-ttl") != std::string::npos);
}

}  // namespace
}  // namespace lintel::testing
