// SPDX-License-Identifier: Apache-2.0
// What the lab promises of one server: tests of the storage lean on it.
#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/redis_lab/tcp_proxy.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {

TEST_CASE("a redis-server is killed and starts again from its file") {
  RedisServer server;
  server.client()("SET key before");
  server.kill();
  CHECK_FALSE(server.is_running());
  CHECK_THROWS_AS(server.client(), std::system_error);
  server.start();
  CHECK(server.client()("GET key").text == "before");
}

TEST_CASE("a file of commands that was cut short has lost its last ones, and only those") {
  RedisServer server(RedisServer::Options{.fsync = "always"});
  server.client()("SET first 1");
  server.client()("SET second 2");
  server.kill();
  server.cut_file(3);
  server.start();
  CHECK(server.client()("GET first").text == "1");
  CHECK(server.client()("GET second").kind == RedisReply::Kind::kNull);

  server.kill();
  server.forget();
  server.start();
  CHECK(server.client()("DBSIZE").integer == 0);
}

TEST_CASE("a paused redis-server keeps its connections and answers when it resumes") {
  RedisServer server;
  RedisClient client(server.endpoint(), std::chrono::milliseconds(50));
  client("PING");
  server.pause();
  CHECK_THROWS_WITH(client("PING"), Catch::Matchers::Contains("does not answer"));
  server.resume();
  CHECK(server.client()("PING").text == "PONG");
}

TEST_CASE("a redis-server that is full refuses to write, and a password is asked for") {
  RedisServer server({.arguments = {"--maxmemory", "3mb", "--requirepass", "secret"},
                      .greeting = {"AUTH", "secret"}});
  RedisClient client = server.client();
  RedisReply reply;
  for (int i = 0; i < 100 && !reply.is_error(); ++i) {
    reply = client.ask({"SET", "key" + std::to_string(i), std::string(100'000, 'x')});
  }
  CHECK(reply.text.starts_with("OOM"));
  CHECK(RedisClient(server.endpoint()).ask({"GET", "key0"}).text.starts_with("NOAUTH"));
}

}  // namespace lintel::testing
