// SPDX-License-Identifier: Apache-2.0
// A RedisStorage among others, and what may happen to its server.
#include <thread>

#include "tests/server/redis_lab/tcp_proxy.h"
#include "tests/server/sessions/storage/redis/redis_storages.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;
using State = SessionStorage::Health::State;

template <typename Call>
Outcome commit(SessionStorage& storage, Call&& call) {
  return commit_one(storage, std::forward<Call>(call));
}

struct TwoStorages {
  explicit TwoStorages(Duration lease = std::chrono::seconds(10)) {
    RedisStorage::Options options = storage_options("a", server.endpoint());
    options.lease = lease;
    a = std::make_unique<RedisStorage>(options, clock);
    options.replica_id = "b";
    b = std::make_unique<RedisStorage>(options, clock);
  }
  RedisServer server;
  ManualClock clock;
  std::unique_ptr<RedisStorage> a, b;
};

TEST_CASE("a session that one storage holds is kHeld for others, with the holder's name",
          "[threat-13]") {
  TwoStorages storages;
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  const SessionStorage::Opened held = storages.b->open("s", "alice", nullptr);
  CHECK(held.outcome == Outcome::kHeld);
  CHECK(held.holder == "a");
  CHECK(held.held_for > std::chrono::seconds(5));
  CHECK(held.held_for <= std::chrono::seconds(10));
  CHECK(storages.b->open("s", "bob", nullptr).outcome == Outcome::kNotFound);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.end(to); }) == Outcome::kNone);
  CHECK(session.difference(*storages.b) == "");
  CHECK(session.difference(*storages.a) == "");
}

TEST_CASE("a renewed lease continues, the lease of a vanished storage ends") {
  TwoStorages storages(std::chrono::milliseconds(600));
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  const SessionStorage::Opened opened = storages.a->open("s", "alice", nullptr);
  REQUIRE(opened.outcome == Outcome::kNone);
  REQUIRE(opened.lease != nullptr);
  const TimePoint first = opened.lease->until();
  CHECK(first > std::chrono::steady_clock::now());
  CHECK(first < std::chrono::steady_clock::now() + std::chrono::milliseconds(600));
  REQUIRE(eventually([&] {
    CHECK(storages.b->open("s", "alice", nullptr).outcome == Outcome::kHeld);
    return opened.lease->until() > first + std::chrono::milliseconds(900);
  }));
  storages.a.reset();
  REQUIRE(eventually([&] { return session.open(*storages.b) == Outcome::kNone; }));
  CHECK(std::chrono::steady_clock::now() > opened.lease->until());
}

TEST_CASE("a storage whose session was taken over writes nothing more", "[threat-67]") {
  TwoStorages storages;
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  Client late(session);
  const RedisKeys keys(redis_bucket("s"));
  storages.server.client().ask({"HSET", keys.session("s"), "u", "0"});  // the lease is over
  REQUIRE(session.open(*storages.b) == Outcome::kNone);
  const bool has_written = GENERATE(true, false);
  if (has_written) {
    REQUIRE(commit(*storages.b, [&](Writes& to) { session.append(to, counted_from(5, 3)); }) ==
            Outcome::kNone);
  }
  CHECK(commit(*storages.a, [&](Writes& to) { late.append(to, counted_from(9, 2)); }) ==
        Outcome::kFenced);
  CHECK(commit(*storages.a, [&](Writes& to) { Client(late).release(to); }) != Outcome::kNone);
  CHECK(storages.a->health().fenced >= 1);
  REQUIRE(commit(*storages.b, [&](Writes& to) { session.end(to); }) == Outcome::kNone);
  CHECK(session.difference(*storages.b) == "");
}

TEST_CASE("the next boot of a replica takes over at once what it held, an earlier one nothing") {
  TwoStorages storages;
  Client session("s");
  RedisStorage again(storage_options("a", storages.server.endpoint()), storages.clock);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  CHECK(session.open(*storages.b) == Outcome::kHeld);
  REQUIRE(session.open(again) == Outcome::kNone);
  CHECK(storages.a->open("s", "alice", nullptr).outcome == Outcome::kHeld);
  REQUIRE(commit(again, [&](Writes& to) { session.append(to, counted_from(0, 2)); }) ==
          Outcome::kNone);
}

TEST_CASE("the call that holds a session writes again what the store lost") {
  TwoStorages storages;
  Client session("s");
  const bool before_claim = GENERATE(true, false);
  const int rewinds = GENERATE(0, 1);
  CAPTURE(before_claim, rewinds);
  const auto append = [&](std::int32_t from, std::size_t count) {
    return commit(*storages.a, [&](Writes& to) { session.append(to, counted_from(from, count)); });
  };
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  REQUIRE(append(0, 4) == Outcome::kNone);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.release(to); }) == Outcome::kNone);
  std::optional<Backup> backup;
  if (before_claim) backup.emplace(storages.server.client(), "s");
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.begin(to, "call"); }) == Outcome::kNone);
  REQUIRE(append(10, 3) == Outcome::kNone);
  if (!before_claim) backup.emplace(storages.server.client(), "s");
  REQUIRE(append(300, 5) == Outcome::kNone);  // wider ones
  if (rewinds > 0) {
    REQUIRE(commit(*storages.a, [&](Writes& to) { session.rewind(to, 6); }) == Outcome::kNone);
  }
  REQUIRE(append(30, 2) == Outcome::kNone);
  backup->restore();
  // Several at once, as a call's end is.
  Writes end;
  session.append(end, counted_from(50, 3));
  session.append(end, counted_from(60, 3));
  RowChange change;
  change.marks = "marks";
  session.end(end, change);
  CHECK(end.commit_to(*storages.a) == std::vector(3, Outcome::kNone));
  CHECK(session.difference(*storages.b) == "");
  CHECK(storages.a->health().healed == 1);
  CHECK(storages.a->health().rolled_back == 1);
}

TEST_CASE("lost writes of a session that another storage continued are not written again") {
  TwoStorages storages;
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  Backup backup(storages.server.client(), "s");
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  Client other(session);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.append(to, counted_from(0, 4)); }) ==
          Outcome::kNone);
  backup.restore();
  REQUIRE(other.open(*storages.b) == Outcome::kNone);
  const bool is_over = GENERATE(true, false);
  REQUIRE(commit(*storages.b, [&](Writes& to) { other.append(to, counted_from(7, 2)); }) ==
          Outcome::kNone);
  if (is_over) {
    REQUIRE(commit(*storages.b, [&](Writes& to) { other.end(to); }) == Outcome::kNone);
  }
  const Outcome refused =
      commit(*storages.a, [&](Writes& to) { session.append(to, counted_from(4, 4)); });
  CHECK((refused == Outcome::kFenced || refused == Outcome::kRolledBack));
  if (!is_over) {
    REQUIRE(commit(*storages.b, [&](Writes& to) { other.end(to); }) == Outcome::kNone);
  }
  CHECK(other.difference(*storages.b) == "");
}

TEST_CASE("the writes of one commit are atomic") {
  TwoStorages storages;
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  const auto scripts = [&] {
    const std::string stats = storages.server.client()("INFO commandstats").text;
    const std::string name = "cmdstat_evalsha:calls=";
    return std::stoi(stats.substr(stats.find(name) + name.size()));
  };
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  const int before = scripts();
  // A server that dies between tokens and what says where they come from leaves neither of them.
  Writes all;
  session.begin(all, "call");
  session.append(all, counted_from(0, 4));
  session.append(all, counted_from(300, 3));
  session.end(all);
  CHECK(all.commit_to(*storages.a) == std::vector(4, Outcome::kNone));
  CHECK(scripts() - before == 1);
  CHECK(session.difference(*storages.b) == "");
  // Also where they are another's by now: none of them.
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  Client late(session);
  const RedisKeys keys(redis_bucket("s"));
  storages.server.client().ask({"HSET", keys.session("s"), "u", "0"});
  REQUIRE(session.open(*storages.b) == Outcome::kNone);
  Writes behind;
  late.begin(behind, "call");
  late.append(behind, counted_from(9, 2));
  late.end(behind);
  CHECK(behind.commit_to(*storages.a) == std::vector(3, Outcome::kFenced));
  REQUIRE(commit(*storages.b, [&](Writes& to) { session.release(to); }) == Outcome::kNone);
  CHECK(session.difference(*storages.b) == "");
}

TEST_CASE("tokens that another storage drew as well, and continued, are not taken back") {
  TwoStorages storages;
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.begin(to, "call"); }) == Outcome::kNone);
  Client late(session);
  const RedisKeys keys(redis_bucket("s"));
  storages.server.client().ask({"HSET", keys.session("s"), "u", "0"});  // the lease is over
  // The call, repeated elsewhere, draws what it would have drawn here.
  REQUIRE(session.open(*storages.b) == Outcome::kNone);
  const auto draw = [](Client& client, Writes& to) {
    client.append(to, counted_from(0, 4));
    client.append(to, counted_from(10, 3));
  };
  Writes ahead;
  draw(session, ahead);
  session.end(ahead);
  REQUIRE(ahead.commit_to(*storages.b) == std::vector(3, Outcome::kNone));
  Writes behind;
  draw(late, behind);
  const std::vector<Outcome> outcomes = behind.commit_to(*storages.a);
  CHECK(outcomes[0] == Outcome::kFenced);
  // Its other tokens are those that stand: that they are there is true.
  CHECK((outcomes[1] == Outcome::kFenced || outcomes[1] == Outcome::kNone));
  CHECK(commit(*storages.a, [&](Writes& to) { Client(late).release(to); }) != Outcome::kStoreAway);
  CHECK(session.difference(*storages.b) == "");
  CHECK(storages.a->health().healed == 0);
}

TEST_CASE("a full server refuses writes, releases sessions, and accepts writes again",
          "[threat-70]") {
  RedisServer server;
  ManualClock clock;
  RedisStorage storage(storage_options("a", server.endpoint()), clock);
  Client session("s"), other("t");
  REQUIRE(commit(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { session.append(to, counted_from(0, 4)); }) ==
          Outcome::kNone);
  RedisClient client = server.client();
  client("CONFIG SET maxmemory 1");
  Client late(session);
  CHECK(commit(storage, [&](Writes& to) { late.append(to, counted_from(4, 100)); }) ==
        Outcome::kStoreFull);
  CHECK(commit(storage, [&](Writes& to) { other.create(to); }) == Outcome::kStoreFull);
  SessionStorage::StateRef ref;
  CHECK(storage.put_state("s", state_of(1), &ref) == Outcome::kStoreFull);
  CHECK(storage.health().state == State::kFull);
  // Its contents can be read, and removed.
  std::vector<std::int32_t> tokens(4);
  CHECK(storage.read_tokens("s", 0, tokens) == Outcome::kNone);
  const bool full_at_end = GENERATE(true, false);
  if (!full_at_end) {
    client("CONFIG SET maxmemory 0");
    REQUIRE(commit(storage, [&](Writes& to) { session.append(to, counted_from(4, 100)); }) ==
            Outcome::kNone);
    CHECK(storage.health().state == State::kOk);
  }
  CHECK(commit(storage, [&](Writes& to) { session.release(to); }) == Outcome::kNone);
  client("CONFIG SET maxmemory 0");
  CHECK(session.difference(storage) == "");
}

TEST_CASE("a server that is paused or killed is away, and its sessions are there when it is back") {
  RedisServer server;
  ManualClock clock;
  RedisStorage::Options options = storage_options("a", server.endpoint());
  options.redis.timeout = std::chrono::milliseconds(700);
  options.redis.silence = std::chrono::milliseconds(300);
  RedisStorage storage(options, clock);
  Client session("s");
  REQUIRE(commit(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(storage) == Outcome::kNone);
  REQUIRE(commit(storage, [&](Writes& to) { session.append(to, counted_from(0, 4)); }) ==
          Outcome::kNone);
  const bool is_killed = GENERATE(true, false);
  CAPTURE(is_killed);
  if (is_killed) {
    server.kill();
  } else {
    server.pause();
  }
  // Its outcome is unknown; tried again, with more, it is written.
  Client first(session);
  CHECK(commit(storage, [&](Writes& to) { first.append(to, counted_from(4, 2)); }) ==
        Outcome::kStoreAway);
  CHECK(storage.find("s", "alice").outcome == Outcome::kStoreAway);
  CHECK(storage.health().state == State::kAway);
  if (is_killed) {
    server.start();
  } else {
    server.resume();
  }
  REQUIRE(eventually([&] {
    Client next(session);
    Writes more;
    next.append(more, counted_from(4, 5));
    if (more.commit_to(storage).front() != Outcome::kNone) return false;
    session = next;
    return true;
  }));
  REQUIRE(commit(storage, [&](Writes& to) { session.end(to); }) == Outcome::kNone);
  CHECK(session.difference(storage) == "");
  CHECK(storage.health().state == State::kOk);
}

TEST_CASE("clocks that differ too much: nothing is removed, and the health says so") {
  RedisServer server;
  ManualClock clock;
  RedisStorage::Options options = storage_options("a", server.endpoint());
  options.clock_difference = std::chrono::seconds(60);
  RedisStorage storage(options, clock);
  Client session("s");
  session.row.expires = session.row.used;  // long ago by every clock
  REQUIRE(commit(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  CHECK(storage.sweep(10) == 0);
  CHECK(storage.health().clocks_differ);
  CHECK(session.difference(storage) == "");
  options.clock_difference = std::chrono::hours(24 * 365 * 200);
  RedisStorage tolerant(options, clock);
  CHECK(tolerant.sweep(10) == 1);
  CHECK_FALSE(tolerant.health().clocks_differ);
}

TEST_CASE("a sweep removes states whose storage died before they were named") {
  TwoStorages storages(std::chrono::milliseconds(400));
  Client session("s");
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(*storages.a) == Outcome::kNone);
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.append(to, counted_from(0, 9)); }) ==
          Outcome::kNone);
  SessionStorage::StateRef ref, named;
  REQUIRE(storages.a->put_state("s", state_of(1), &ref) == Outcome::kNone);
  REQUIRE(storages.a->put_state("s", state_of(2), &named) == Outcome::kNone);
  named.position = 9;
  REQUIRE(commit(*storages.a, [&](Writes& to) { session.states(to, {named}); }) == Outcome::kNone);
  CHECK(storages.b->sweep(0) == 0);
  std::vector<std::byte> state(5000);
  CHECK(storages.b->read_state(ref, state) == Outcome::kNone);  // its holder may still name it
  storages.a.reset();
  REQUIRE(eventually([&] {
    storages.b->sweep(0);
    return storages.b->read_state(ref, state) == Outcome::kDamaged;
  }));
  CHECK(storages.b->read_state(named, state) == Outcome::kNone);
  REQUIRE(eventually([&] { return session.open(*storages.b) == Outcome::kNone; }));
  REQUIRE(commit(*storages.b, [&](Writes& to) { session.remove(to); }) == Outcome::kNone);
  CHECK(storages.b->read_state(named, state) == Outcome::kDamaged);
  RedisClient client = storages.server.client();
  REQUIRE(eventually([&] { return client("DBSIZE").integer == 0; }));
}

TEST_CASE("buckets ascend with ids, and ids of hexadecimal digits have all of them") {
  std::vector<std::string> ids = {"",   "!",   "0",       "00", "000", "0/1", "0:",  "09z",
                                  "0a", "9zz", "9{a",     ":",  "@",   "A",   "Zf",  "_",
                                  "a",  "a00", "abg",     "af", "ag",  "b",   "fff", "ffg",
                                  "fg", "g",   "session", "z",  "~",   "\xff"};
  std::ranges::sort(ids);
  for (std::size_t i = 1; i < ids.size(); ++i) {
    CAPTURE(ids[i - 1], ids[i]);
    CHECK(redis_bucket(ids[i - 1]) <= redis_bucket(ids[i]));
  }
  CHECK(redis_bucket("000") == 0);
  CHECK(redis_bucket("abc") == 0xabc);
  CHECK(redis_bucket("fff") == 0xfff);
  CHECK(redis_bucket("\xff") == 0xfff);
}

}  // namespace
}  // namespace lintel::testing
