// SPDX-License-Identifier: Apache-2.0
// Evictions in the order of last use: what they cost does not depend on how many sessions there
// are.
#include <set>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Error = SessionError;
using std::chrono::seconds;

struct EvictionFixture {
  explicit EvictionFixture(std::size_t max_sessions)
      : store({.max_sessions = max_sessions,
               .session_memory_bytes = std::size_t{1} << 32,
               .idle_timeout = seconds(100)},
              clock) {}
  std::string create() {
    const auto created = store.create("tiny", model, 0);
    REQUIRE(created.refusal.error == Error::kNone);
    return created.info.id;
  }
  std::uint64_t examined() const { return store.stats().examined; }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kImage);
  ManualClock clock;
  SessionManager store;
};

TEST_CASE("a refusal looks at one session, however many there are") {
  for (const std::size_t sessions : {10u, 10'000u}) {
    CAPTURE(sessions);
    EvictionFixture f(sessions);
    for (std::size_t i = 0; i < sessions; ++i) f.create();
    f.clock.advance(seconds(99));
    const std::uint64_t before = f.examined();
    for (int i = 0; i < 100; ++i) {
      CHECK(f.store.create("tiny", f.model, 0).refusal.error == Error::kTooManySessions);
    }
    CHECK(f.examined() - before <= 100);
    CHECK(f.store.num_sessions() == sessions);
  }
}

TEST_CASE("an eviction looks at the sessions it evicts and one more") {
  EvictionFixture f(0);
  for (int i = 0; i < 50; ++i) f.create();
  f.clock.advance(seconds(60));
  for (int i = 0; i < 5000; ++i) f.create();
  f.clock.advance(seconds(60));
  const std::uint64_t before = f.examined();
  CHECK(f.store.evict_idle() == 50);
  CHECK(f.examined() - before <= 51);
  CHECK(f.store.num_sessions() == 5000);
}

TEST_CASE(
    "short share of an owner: its longest unused stored session is evicted, and one is looked at") {
  const auto transformer = tiny_model(TinyModel::kTokens);
  const ManualClock clock;
  SessionManager store({.session_memory_bytes = 1u << 30, .max_sessions_per_owner = 50}, clock);
  const auto create = [&](const Owner& owner) {
    const auto made = store.create("tiny", transformer, 8, owner);
    if (!made.refusal) store.set_stored(made.info.id, owner);
    return made.info.id;
  };
  for (int i = 0; i < 50; ++i) create("bob");
  std::vector<std::string> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(create("alice"));
  { const auto used = store.lease(ids[0], "alice"); }
  const auto held = store.lease(ids[1], "alice");
  const std::uint64_t before = store.stats().examined;
  REQUIRE_FALSE(create("alice").empty());
  CHECK(store.stats().examined == before + 1);
  CHECK_FALSE(store.get(ids[2], "alice"));
  CHECK(store.remove(ids[3], "alice").error == SessionError::kNone);
  CHECK_FALSE(create("alice").empty());
  CHECK(store.get(ids[0], "alice"));
  CHECK(store.get(ids[4], "alice"));
  for (int i = 0; i < 48; ++i) CHECK_FALSE(create("alice").empty());
  CHECK(store.get(ids[1], "alice"));
  CHECK(store.list("", "", 1000, Owner("bob")).size() == 50);
  CHECK(store.list("", "", 1000, Owner("alice")).size() == 50);
  CHECK(store.idle_stored().size() == 99);
}

TEST_CASE("sessions are evicted in the order of their last use, and never under a lease") {
  EvictionFixture f(0);
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(f.create());
    f.clock.advance(seconds(10));
  }
  // Used again in another order: 2 at 40 s, 0 at 50 s, released; 3 is kept.
  f.store.lease(ids[2]);
  f.clock.advance(seconds(10));
  f.store.lease(ids[0]);
  auto kept = f.store.lease(ids[3]).lease;
  const auto left = [&] {
    std::set<std::string> found;
    for (const SessionInfo& info : f.store.list("", "", 100)) found.insert(info.id);
    return found;
  };
  f.clock.advance(seconds(61));  // 111 s: only 1, of 10 s, is past its time
  CHECK(f.store.evict_idle() == 1);
  CHECK(left() == std::set<std::string>{ids[0], ids[2], ids[3]});
  f.clock.advance(seconds(30));  // 141 s
  CHECK(f.store.evict_idle() == 1);
  CHECK(left() == std::set<std::string>{ids[0], ids[3]});
  f.clock.advance(seconds(1000));
  CHECK(f.store.evict_idle() == 1);
  CHECK(left() == std::set<std::string>{ids[3]});
  kept = SessionLease();
  CHECK(f.store.evict_idle() == 0);
  f.clock.advance(seconds(100));
  CHECK(f.store.evict_idle() == 1);
  CHECK(f.store.bytes_in_use() == 0);
}

TEST_CASE("pinned session: not evicted before its last pin is gone") {
  EvictionFixture f(0);
  const std::string id = f.create();
  CHECK_FALSE(f.store.pin("nosuch"));
  SessionPin pin = f.store.pin(id);
  REQUIRE(pin);
  SessionPin other = f.store.pin(id);
  const std::string unpinned = f.create();
  f.clock.advance(seconds(101));
  CHECK(f.store.evict_idle() == 1);
  CHECK_FALSE(f.store.get(unpinned));
  pin = std::move(other);  // the first one is gone
  f.clock.advance(seconds(101));
  CHECK(f.store.evict_idle() == 0);
  CHECK(f.store.lease(id).lease);  // it can be used
  f.clock.advance(seconds(101));
  CHECK(f.store.evict_idle() == 0);
  CHECK(pin.is_current());
  SECTION("evicted afterwards") {
    pin = SessionPin();
    CHECK(f.store.evict_idle() == 1);
  }
  SECTION("deleted meanwhile") {
    CHECK_FALSE(f.store.remove(id));
    CHECK_FALSE(pin.is_current());
    pin = SessionPin();
  }
  CHECK(f.store.bytes_in_use() == 0);
}

TEST_CASE("full memory: a pinned session stays, and the next one leaves for storage") {
  const auto transformer = tiny_model(TinyModel::kTokens);
  const ManualClock clock;
  SessionManager store({.max_sessions = 2, .session_memory_bytes = 1u << 30}, clock);
  const auto create = [&] {
    const auto made = store.create("tiny", transformer, 8);
    if (!made.refusal) store.set_stored(made.info.id, {});
    return made.info.id;
  };
  const std::string first = create();
  const std::string second = create();
  const SessionPin pin = store.pin(first);
  CHECK_FALSE(create().empty());
  CHECK(store.get(first));
  CHECK_FALSE(store.get(second));
  const auto last = store.list("", "", 10);
  REQUIRE(last.size() == 2);
  const SessionPin other = store.pin(last[0].id == first ? last[1].id : last[0].id);
  CHECK(create().empty());  // both are pinned
}

TEST_CASE("memory that a call holds for its session is counted with the lease, and never refused") {
  EvictionFixture f(0);
  const std::string id = f.create();
  const std::size_t idle = f.store.bytes_in_use();
  {
    auto leased = f.store.lease(id);
    REQUIRE(leased.refusal.error == Error::kNone);
    leased.lease.hold(/*call_bytes=*/10'000);
    CHECK(f.store.bytes_in_use() == idle + 10'000);
    CHECK(f.store.stats().one_shot_bytes == 10'000);
    CHECK(f.store.lease(id).refusal.error == Error::kBusy);
    CHECK(f.store.bytes_in_use() == idle + 10'000);
  }
  CHECK(f.store.bytes_in_use() == idle);
  CHECK(f.store.lease("nosuch").refusal.error == Error::kNotFound);
  CHECK(f.store.bytes_in_use() == idle);
  {
    const auto one_shot = f.store.lease_one_shot("tiny", f.model, 0, 2, {}, 10'000);
    CHECK(f.store.bytes_in_use() ==
          idle + 2 * SessionManager::admitted_bytes(*f.model, 29) + 10'000);
  }
  // Beyond all memory the session continues; others find none.
  constexpr std::size_t kAll = std::size_t{1} << 32;
  CHECK(f.store.lease_one_shot("tiny", f.model, 0, 1, {}, kAll).refusal.error == Error::kTooLarge);
  auto leased = f.store.lease(id);
  CHECK(leased.refusal.error == Error::kNone);
  leased.lease.hold(kAll);
  const auto refused = f.store.lease_one_shot("tiny", f.model, 0, 1);
  CHECK(refused.refusal.error == Error::kOutOfMemory);
  CHECK(refused.refusal.bytes_free == 0);
}

TEST_CASE("a page of one owner's sessions among many others' is whole") {
  EvictionFixture f(0);
  std::set<std::string> mine;
  for (int i = 0; i < 5000; ++i) {
    const bool own = i % 1000 == 0;
    const auto created = f.store.create("tiny", f.model, 0, own ? "me" : "others");
    REQUIRE(created.refusal.error == Error::kNone);
    if (own) mine.insert(created.info.id);
  }
  std::set<std::string> found;
  for (const SessionInfo& info : f.store.list("", "", 100, "me")) found.insert(info.id);
  CHECK(found == mine);
  CHECK(f.store.list("", "", 2, "me").size() == 2);
  CHECK(f.store.close_sessions(*f.model) == 5000);
  CHECK(f.store.num_sessions() == 0);
  CHECK(f.store.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
