#include "server/sessions/session_store.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "tests/server/support/harness.h"

namespace lintel::testing {
namespace {

using Error = SessionStore::Error;
using std::chrono::seconds;

struct StoreFixture {
  explicit StoreFixture(SessionStore::Options options) : store(options, clock) {}
  std::string create() {
    const auto created = store.create("tiny", model, 0);
    REQUIRE(created.error == Error::kNone);
    return created.info.id;
  }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kImage);
  const std::size_t bytes_each = SessionStore::admitted_bytes(*model, 29);
  ManualClock clock;
  SessionStore store;
};

void feed(const Transformer& model, SequenceState& sequence, int count) {
  Workspace workspace = model.new_workspace(1);
  for (int i = 0; i < count; ++i) {
    const StepRow row{i, &sequence, false};
    model.step(std::span(&row, 1), workspace);
  }
}

TEST_CASE("session ids are 128 bits in hexadecimal and differ") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = f.create();
    REQUIRE(id.size() == 32);
    REQUIRE(id.find_first_not_of("0123456789abcdef") == std::string::npos);
    ids.insert(id);
  }
  REQUIRE(ids.size() == 1000);
}

TEST_CASE("a session remembers its state between leases") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const std::string id = f.create();
  {
    auto leased = f.store.lease(id);
    REQUIRE(leased.lease.model() == "tiny");
    REQUIRE(leased.lease.session_id() == id);
    feed(*f.model, leased.lease.sequence(), 3);
    leased.lease.sequence().pending = 5;
    REQUIRE(f.store.get(id)->busy);
    REQUIRE(f.store.get(id)->num_values == 0);  // as of the last time it was idle
  }
  REQUIRE(f.store.get(id)->num_values == 4);
  REQUIRE(f.store.get(id)->has_pending);
  REQUIRE(!f.store.get(id)->busy);
  REQUIRE(f.store.lease(id).lease.sequence().position() == 3);
}

TEST_CASE("a leased session is busy: not leased, removed or evicted") {
  StoreFixture f({.session_memory_bytes = 1u << 30, .idle_timeout = seconds(10)});
  const std::string id = f.create();
  {
    const auto leased = f.store.lease(id);
    REQUIRE(f.store.lease(id).error == Error::kBusy);
    REQUIRE(f.store.remove(id) == Error::kBusy);
    f.clock.advance(seconds(100));
    REQUIRE(f.store.evict_idle() == 0);
  }
  REQUIRE(f.store.evict_idle() == 0);  // used just now
  REQUIRE(f.store.remove(id) == Error::kNone);
  REQUIRE(f.store.remove(id) == Error::kNotFound);
  REQUIRE(f.store.lease(id).error == Error::kNotFound);
}

TEST_CASE("a leased session that somebody is done with goes when its lease ends") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const std::string id = f.create(), idle = f.create();
  {
    const auto leased = f.store.lease(id);
    f.store.remove_when_idle(id);
    f.store.remove_when_idle(idle);
    f.store.remove_when_idle("no such session");
    REQUIRE(f.store.num_sessions() == 1);
    REQUIRE(f.store.lease(id).error == Error::kBusy);
  }
  REQUIRE(f.store.lease(id).error == Error::kNotFound);
  REQUIRE(f.store.num_sessions() == 0);
  REQUIRE(f.store.bytes_in_use() == 0);
}

TEST_CASE("sessions go with their model: idle ones at once, leased ones when they are given back") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const auto other = tiny_model(TinyModel::kTokens);
  const std::string kept = f.store.create("other", other, 0).info.id;
  const std::size_t bytes = f.store.bytes_in_use();
  const std::string idle = f.create(), busy = f.create(), discarded = f.create();
  {
    const auto leased = f.store.lease(busy);
    auto broken = f.store.lease(discarded);
    REQUIRE(f.store.close_sessions(*f.model) == 3);
    REQUIRE(f.store.num_sessions() == 3);
    REQUIRE(f.store.lease(idle).error == Error::kUnloaded);
    REQUIRE(f.store.lease(busy).error == Error::kBusy);
    REQUIRE(f.store.get(busy)->transformer == f.model);
    broken.lease.discard();
  }
  for (const std::string& id : {idle, busy, discarded}) {
    REQUIRE(!f.store.get(id));
    REQUIRE(f.store.lease(id).error == Error::kUnloaded);
    REQUIRE(f.store.remove(id) == Error::kUnloaded);
    REQUIRE(f.store.absence(id) == Error::kUnloaded);
    REQUIRE(f.store.absence(id, "somebody else") == Error::kNotFound);
  }
  REQUIRE(f.store.bytes_in_use() == bytes);
  REQUIRE(f.store.lease(kept).error == Error::kNone);
  REQUIRE(f.store.close_sessions(*f.model) == 0);
}

TEST_CASE("of sessions that went with their models the last ones are remembered") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const std::string first = f.create();
  f.store.close_sessions(*f.model);
  REQUIRE(f.store.absence(first) == Error::kUnloaded);
  std::string last;
  for (std::size_t left = SessionStore::kMostRemembered; left > 0;) {
    for (int i = 0; i < 100 && left > 0; ++i, --left) last = f.create();
    f.store.close_sessions(*f.model);
  }
  REQUIRE(f.store.absence(first) == Error::kNotFound);
  REQUIRE(f.store.absence(last) == Error::kUnloaded);
}

TEST_CASE("sessions idle past the timeout are evicted, others stay") {
  StoreFixture f({.session_memory_bytes = 1u << 30, .idle_timeout = seconds(10)});
  const std::string old_one = f.create();
  f.clock.advance(seconds(6));
  const std::string new_one = f.create();
  f.clock.advance(seconds(4));
  REQUIRE(f.store.evict_idle() == 1);
  REQUIRE(!f.store.get(old_one));
  REQUIRE(f.store.get(new_one));
  REQUIRE(f.store.bytes_in_use() == f.bytes_each);
}

TEST_CASE("memory beyond the budget is refused with the figures, one-shot calls included") {
  StoreFixture f({});
  SessionStore store({.session_memory_bytes = 4 * f.bytes_each + 1}, f.clock);
  const auto session = store.create("tiny", f.model, 0);
  auto call = store.lease_one_shot("tiny", f.model, 30, /*num_samples=*/3);
  REQUIRE(call.error == Error::kNone);
  REQUIRE(call.lease.session_id().empty());
  REQUIRE(store.bytes_in_use() == 4 * f.bytes_each);
  const auto refused = store.create("tiny", f.model, 0);
  REQUIRE(refused.error == Error::kOutOfMemory);
  REQUIRE(refused.bytes_needed == f.bytes_each);
  REQUIRE(refused.bytes_free == 1);
  REQUIRE(store.lease_one_shot("tiny", f.model, 30, 1).error == Error::kOutOfMemory);
  call.lease = SessionLease();
  REQUIRE(store.bytes_in_use() == f.bytes_each);
  REQUIRE(store.create("tiny", f.model, 0).error == Error::kNone);
}

TEST_CASE("what would not fit with nothing else there is told apart from what has to wait") {
  StoreFixture f({});
  SessionStore store(
      {.session_memory_bytes = 4 * f.bytes_each, .bytes_per_owner = 2 * f.bytes_each}, f.clock);
  const auto large = store.lease_one_shot("tiny", f.model, 0, /*num_samples=*/3, "alice");
  CHECK(large.error == Error::kTooLarge);
  CHECK(large.bytes_needed == 3 * f.bytes_each);
  CHECK(large.bytes_free == 2 * f.bytes_each);
  const auto held = store.lease_one_shot("tiny", f.model, 0, 2, "alice");
  REQUIRE(held.error == Error::kNone);
  CHECK(store.lease_one_shot("tiny", f.model, 0, 1, "alice").error == Error::kOwnerOutOfMemory);
  CHECK(store.lease_one_shot("tiny", f.model, 0, 2, "bob").error == Error::kNone);
}

TEST_CASE("idle sessions go before anything is refused") {
  StoreFixture f({});
  SessionStore store(
      {.max_sessions = 1, .session_memory_bytes = f.bytes_each, .idle_timeout = seconds(10)},
      f.clock);
  const std::string id = store.create("tiny", f.model, 0).info.id;
  REQUIRE(store.create("tiny", f.model, 0).error == Error::kTooManySessions);
  REQUIRE(store.lease_one_shot("tiny", f.model, 0, 1).error == Error::kOutOfMemory);
  f.clock.advance(seconds(10));
  REQUIRE(store.create("tiny", f.model, 0).error == Error::kNone);
  REQUIRE(!store.get(id));
  REQUIRE(store.num_sessions() == 1);
}

TEST_CASE("a discarded session is gone when its lease ends") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const std::string id = f.create();
  {
    auto leased = f.store.lease(id);
    leased.lease.discard();
    REQUIRE(f.store.get(id));
  }
  REQUIRE(!f.store.get(id));
  REQUIRE(f.store.bytes_in_use() == 0);
}

TEST_CASE("a session's limit is the least of its own, the image and the position table") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  REQUIRE(f.store.create("tiny", f.model, 0).info.max_values == 30);
  REQUIRE(f.store.create("tiny", f.model, 12).info.max_values == 12);
  REQUIRE(f.store.create("tiny", f.model, 31).info.max_values == 30);
  const auto unbounded = tiny_model(TinyModel::kTokens);
  REQUIRE(f.store.create("tokens", unbounded, 0).info.max_values == 0);
  REQUIRE(f.store.create("tokens", unbounded, 9).info.max_values == 9);
  // What a one-shot call is admitted for does not end its sequence.
  REQUIRE(f.store.lease_one_shot("tiny", f.model, 5, 1).lease.max_values() == 30);
}

TEST_CASE("a state that grows is admitted by the values it may come to hold") {
  const std::string attention = GENERATE("softmax", "lsh");
  CAPTURE(attention);
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const auto unbounded = tiny_model(TinyModel::kTokens, attention);
  const auto admitted = [&](std::int64_t max_values) {
    const std::size_t before = f.store.bytes_in_use();
    const auto created = f.store.create("growing", unbounded, max_values);
    REQUIRE(created.error == Error::kNone);
    REQUIRE(created.info.max_values == max_values);
    REQUIRE(f.store.bytes_in_use() - before == created.info.state_bytes);
    return created.info.state_bytes;
  };
  // The last value is never fed.
  CHECK(admitted(100) == SessionStore::admitted_bytes(*unbounded, 99));
  CHECK(admitted(10'000) == SessionStore::admitted_bytes(*unbounded, 9'999));
  CHECK(admitted(10'000) > 50 * admitted(100));

  // Without a limit there is no telling.
  CHECK(f.store.create("growing", unbounded, 0).error == Error::kNeedsMaxTokens);
  CHECK(f.store.lease_one_shot("growing", unbounded, 0, 1).error == Error::kNeedsMaxTokens);
  // The model's own limit will do.
  const auto bounded = tiny_model(TinyModel::kImage, attention);
  CHECK(f.store.create("image", bounded, 0).info.state_bytes ==
        SessionStore::admitted_bytes(*bounded, 29));

  // More than fits, and more than can be counted.
  for (const std::int64_t most : {std::int64_t{100'000'000}, std::int64_t{1} << 53}) {
    const auto refused = f.store.create("growing", unbounded, most);
    CHECK(refused.error == Error::kTooLarge);
    CHECK(refused.bytes_needed >= std::size_t{1} << 30);
    CHECK(f.store.lease_one_shot("growing", unbounded, most, 64).error == Error::kTooLarge);
  }
}

TEST_CASE("samples of a state that grows are admitted each") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const auto model = tiny_model(TinyModel::kTokens, "softmax");
  const auto leased = f.store.lease_one_shot("growing", model, 500, 3);
  REQUIRE(leased.error == Error::kNone);
  CHECK(f.store.bytes_in_use() == 3 * SessionStore::admitted_bytes(*model, 499));
}

TEST_CASE("sessions are listed by id, page after page, by model") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  std::set<std::string> ids;
  for (int i = 0; i < 10; ++i) ids.insert(f.create());
  f.store.create("other", tiny_model(TinyModel::kBytes), 0);
  std::vector<std::string> listed;
  while (true) {
    const auto page = f.store.list("tiny", listed.empty() ? "" : listed.back(), 3);
    if (page.empty()) break;
    REQUIRE(page.size() <= 3);
    for (const SessionInfo& info : page) listed.push_back(info.id);
  }
  REQUIRE(listed == std::vector<std::string>(ids.begin(), ids.end()));
  REQUIRE(f.store.list("", "", 100).size() == 11);
}

// Random operations against a model of what the store should do.
TEST_CASE("the store agrees with its model over random operations") {
  const unsigned seed = 4711;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  StoreFixture f({});
  constexpr std::size_t kSessions = 6;
  constexpr std::size_t kStates = 8;
  constexpr auto kTimeout = seconds(20);
  SessionStore store({.max_sessions = kSessions,
                      .session_memory_bytes = kStates * f.bytes_each,
                      .idle_timeout = kTimeout},
                     f.clock);
  struct Expected {
    TimePoint last_used;
    std::int64_t num_values = 0;
    bool doomed = false;
  };
  std::map<std::string, Expected> sessions;
  std::map<std::string, SessionLease> leases;
  std::vector<std::pair<int, SessionLease>> one_shots;
  std::vector<std::string> known = {"no such session"};
  const auto states = [&] {
    std::size_t count = sessions.size();
    for (const auto& one_shot : one_shots) count += static_cast<std::size_t>(one_shot.first);
    return count;
  };
  const auto evict = [&] {
    return std::erase_if(sessions, [&](const auto& s) {
      return !leases.contains(s.first) && f.clock.now() - s.second.last_used >= kTimeout;
    });
  };
  const auto room_for = [&](std::size_t count, bool session) {
    const auto fits = [&] {
      return states() + count <= kStates && (!session || sessions.size() < kSessions);
    };
    if (!fits()) evict();
    return fits();
  };

  for (int i = 0; i < 20000; ++i) {
    const std::string id = known[random() % known.size()];
    switch (random() % 9) {
      case 0: {
        const bool fits = room_for(1, true);
        const auto created = store.create("tiny", f.model, 0);
        REQUIRE((created.error == Error::kNone) == fits);
        if (fits) {
          sessions[created.info.id] = {f.clock.now()};
          known.push_back(created.info.id);
          if (known.size() > 20) known.erase(known.begin() + 1);
        }
        break;
      }
      case 1:
      case 2: {
        auto leased = store.lease(id);
        if (!sessions.contains(id)) {
          REQUIRE(leased.error == Error::kNotFound);
        } else if (leases.contains(id)) {
          REQUIRE(leased.error == Error::kBusy);
        } else {
          REQUIRE(leased.error == Error::kNone);
          leases[id] = std::move(leased.lease);
        }
        break;
      }
      case 3:
      case 4: {
        if (leases.empty()) break;
        const auto lease = leases.begin();
        Expected& expected = sessions.at(lease->first);
        if (random() % 2 == 0) {
          const int count = static_cast<int>(random() % 2);
          if (lease->second.sequence().position() + count <= 29) {
            feed(*f.model, lease->second.sequence(), count);
          }
        }
        expected.num_values = lease->second.sequence().num_values();
        expected.last_used = f.clock.now();
        if (random() % 8 == 0) {
          lease->second.discard();
          sessions.erase(lease->first);
        }
        leases.erase(lease);
        break;
      }
      case 5: {
        const Error expected = !sessions.contains(id) ? Error::kNotFound
                               : leases.contains(id)  ? Error::kBusy
                                                      : Error::kNone;
        REQUIRE(store.remove(id) == expected);
        if (expected == Error::kNone) sessions.erase(id);
        break;
      }
      case 6: {
        const int count = 1 + static_cast<int>(random() % 3);
        const bool fits = room_for(static_cast<std::size_t>(count), false);
        auto leased = store.lease_one_shot("tiny", f.model, 30, count);
        REQUIRE((leased.error == Error::kNone) == fits);
        if (fits) {
          REQUIRE(leased.lease.sequence().num_values() == 0);
          one_shots.emplace_back(count, std::move(leased.lease));
        }
        break;
      }
      case 7:
        if (!one_shots.empty()) one_shots.erase(one_shots.begin());
        break;
      case 8:
        f.clock.advance(seconds(random() % 5));
        if (random() % 4 == 0) REQUIRE(store.evict_idle() == evict());
        break;
    }
    REQUIRE(store.num_sessions() == sessions.size());
    REQUIRE(store.bytes_in_use() == states() * f.bytes_each);
    const auto info = store.get(id);
    REQUIRE(info.has_value() == sessions.contains(id));
    if (info) {
      REQUIRE(info->busy == leases.contains(id));
      REQUIRE(info->num_values == sessions.at(id).num_values);
    }
  }
  leases.clear();
  one_shots.clear();
}

}  // namespace
}  // namespace lintel::testing
