// SPDX-License-Identifier: Apache-2.0
// Documents in Redis: for how long it has them.
#include "server/sessions/storage/redis/redis_documents.h"

#include <chrono>
#include <string>

#include "server/sessions/storage/redis/redis_servers.h"
#include "tests/server/redis_lab/redis_server.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

TEST_CASE("documents in Redis: it has them for ten minutes after they expire") {
  const RedisServer server;
  ManualClock clock;
  RedisOptions options;
  options.url.servers = {{"127.0.0.1", server.port()}};
  RedisDocuments storage(options, clock);
  const auto put = [&](const std::string& id, const std::string& parent) {
    Document made{.id = id, .owner = "ada", .parent = parent, .body = "body"};
    made.expires = clock.wall_time() + hours(1);
    return storage.put(made);
  };
  const auto left = [&](const std::string& id) {
    const std::string key = RedisKeys(redis_bucket(id)).document(id);
    return milliseconds(server.client().ask({"PTTL", key}).integer);
  };
  const milliseconds expected = hours(1) + minutes(10);
  REQUIRE(put("a", "") == SessionError::kNone);
  CHECK(left("a") <= expected);
  CHECK(left("a") > expected - minutes(1));
  clock.advance(minutes(30));  // the chain lives from its last use
  REQUIRE(put("b", "a") == SessionError::kNone);
  CHECK(left("a") <= expected);
  CHECK(left("a") > expected - minutes(1));
  Document found;
  REQUIRE(storage.find("a", "ada", clock.wall_time() + hours(2), found) == SessionError::kNone);
  CHECK(left("a") > hours(2) + minutes(9));
  CHECK(left("a") <= hours(2) + minutes(10));
}

}  // namespace
}  // namespace lintel::testing
