// SPDX-License-Identifier: Apache-2.0
// A RedisStorage whose requests arrive, and whose answers do not.
#include "server/sessions/storage/redis/redis_protocol.h"
#include "tests/server/redis_lab/tcp_proxy.h"
#include "tests/server/sessions/storage/redis/redis_storages.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;

template <typename Call>
Outcome commit(SessionStorage& storage, Call&& call) {
  return commit_one(storage, std::forward<Call>(call));
}

struct FarStorage {
  // timeout: of a request, all its tries.
  explicit FarStorage(std::chrono::milliseconds timeout) : storage(options_of(timeout), clock) {}

  RedisServer server;
  TcpProxy proxy{server.endpoint()};
  ManualClock clock;
  RedisStorage storage;
  Client session{"s"};

 private:
  RedisStorage::Options options_of(std::chrono::milliseconds timeout) const {
    RedisStorage::Options options = storage_options("a", proxy.endpoint());
    options.redis.timeout = timeout;
    return options;
  }
};

constexpr std::chrono::milliseconds kLong{3000}, kShort{300};

TEST_CASE("a write whose answer is lost is done once") {
  FarStorage far(kLong);
  Client& session = far.session;
  const auto lose = [&](const std::string& text) { far.proxy.lose_answer_to(text); };
  const RedisKeys keys(redis_bucket("s"));
  lose(keys.ids);
  CHECK(commit(far.storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  lose(":m");
  CHECK(session.open(far.storage) == Outcome::kNone);
  lose(":m");
  CHECK(commit(far.storage, [&](Writes& to) { session.begin(to, "call"); }) == Outcome::kNone);
  lose(":m");
  CHECK(commit(far.storage, [&](Writes& to) { session.append(to, counted_from(0, 5)); }) ==
        Outcome::kNone);
  lose(":m");
  CHECK(commit(far.storage, [&](Writes& to) { session.append(to, counted_from(5, 300)); }) ==
        Outcome::kNone);
  lose(":m");
  Writes end;
  session.append(end, counted_from(7, 3));
  session.end(end);
  CHECK(end.commit_to(far.storage) == std::vector(2, Outcome::kNone));
  CHECK(far.proxy.lost_answers() == 6);
  CHECK(session.difference(far.storage) == "");
  CHECK(far.storage.health().fenced == 0);
}

TEST_CASE("a claim whose answer is lost is the same claim when it is asked for again") {
  FarStorage far(kShort);
  Client& session = far.session;
  REQUIRE(commit(far.storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  far.proxy.cut_answers();
  CHECK(far.storage.open("s", "alice", nullptr).outcome == Outcome::kStoreAway);
  const RedisKeys keys(redis_bucket("s"));
  const auto nonce = [&] { return far.server.client().ask({"HGET", keys.session("s"), "n"}).text; };
  const std::string granted = nonce();
  REQUIRE_FALSE(granted.empty());
  far.proxy.heal();
  REQUIRE(eventually([&] { return session.open(far.storage) == Outcome::kNone; }));
  CHECK(nonce() == granted);
  REQUIRE(commit(far.storage, [&](Writes& to) { session.append(to, counted_from(0, 2)); }) ==
          Outcome::kNone);
  REQUIRE(commit(far.storage, [&](Writes& to) { session.end(to); }) == Outcome::kNone);
  // The request once more, late: it is granted, and its answer dropped.
  far.server.client().ask({"EVALSHA", RedisScripts::get().claim.sha1, "1", keys.session("s"),
                           "alice", granted, "a", "0", "10000", "", ""});
  CHECK(nonce().empty());
}

TEST_CASE("a state that stands though its answer was lost is not dropped with the claim") {
  FarStorage far(kShort);
  Client& session = far.session;
  REQUIRE(commit(far.storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(far.storage) == Outcome::kNone);
  const std::vector<std::byte> bytes(100, std::byte{7});
  SessionStorage::StateRef ref{.position = 4};
  REQUIRE(far.storage.put_state("s", bytes, &ref) == Outcome::kNone);
  far.proxy.cut_answers();
  Writes lost;
  Client sent(session);
  sent.append(lost, counted_from(0, 4));
  sent.states(lost, {ref});
  CHECK(lost.commit_to(far.storage) == std::vector(2, Outcome::kStoreAway));
  far.proxy.heal();
  REQUIRE(eventually([&] {
    return commit(far.storage, [&](Writes& to) { session.release(to); }) == Outcome::kNone;
  }));
  std::vector<std::byte> read(bytes.size());
  CHECK(far.storage.read_state(ref, read) == Outcome::kNone);
  CHECK(read == bytes);
  CHECK(far.storage.find("s", "alice").row.states == std::vector{ref});
}

}  // namespace
}  // namespace lintel::testing
