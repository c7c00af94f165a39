// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_manager.h"

#include <set>

#include "tests/server/sessions/store_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Error = SessionError;
using std::chrono::seconds;

TEST_CASE("session ids are 128 bits in hexadecimal and differ", "[threat-3]") {
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
    REQUIRE(&leased.lease.transformer() == f.model.get());
    feed(*f.model, leased.lease.sequence(), 3);
    leased.lease.sequence().pending = 5;
    REQUIRE(f.store.get(id)->busy);
    REQUIRE(f.store.get(id)->num_tokens == 0);  // as of the last time it was idle
  }
  REQUIRE(f.store.get(id)->num_tokens == 4);
  REQUIRE(f.store.get(id)->has_pending);
  REQUIRE(!f.store.get(id)->busy);
  REQUIRE(f.store.lease(id).lease.sequence().position() == 3);
}

TEST_CASE("a leased session is busy: not leased, removed or evicted") {
  StoreFixture f({.session_memory_bytes = 1u << 30, .idle_timeout = seconds(10)});
  const std::string id = f.create();
  {
    const auto leased = f.store.lease(id);
    REQUIRE(f.store.lease(id).refusal.error == Error::kBusy);
    REQUIRE(f.store.remove(id).error == Error::kBusy);
    f.clock.advance(seconds(100));
    REQUIRE(f.store.evict_idle() == 0);
  }
  REQUIRE(f.store.evict_idle() == 0);  // used just now
  REQUIRE(f.store.remove(id).error == Error::kNone);
  REQUIRE(f.store.remove(id).error == Error::kNotFound);
  REQUIRE(f.store.lease(id).refusal.error == Error::kNotFound);
}

TEST_CASE("a leased session that is removed goes when its lease ends") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const std::string id = f.create(), idle = f.create();
  {
    const auto leased = f.store.lease(id);
    f.store.remove_when_idle(id);
    f.store.remove_when_idle(idle);
    f.store.remove_when_idle("no such session");
    REQUIRE(f.store.num_sessions() == 1);
    REQUIRE(f.store.lease(id).refusal.error == Error::kBusy);
  }
  REQUIRE(f.store.lease(id).refusal.error == Error::kNotFound);
  REQUIRE(f.store.num_sessions() == 0);
  REQUIRE(f.store.bytes_in_use() == 0);
}

TEST_CASE("sessions go with their model: idle ones at once, leased ones when they are released") {
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
    REQUIRE(f.store.lease(idle).refusal.error == Error::kUnloaded);
    REQUIRE(f.store.lease(busy).refusal.error == Error::kBusy);
    REQUIRE(&leased.lease.transformer() == f.model.get());
    broken.lease.discard();
  }
  for (const std::string& id : {idle, busy, discarded}) {
    REQUIRE(!f.store.get(id));
    REQUIRE(f.store.lease(id).refusal.error == Error::kUnloaded);
    REQUIRE(f.store.remove(id).error == Error::kUnloaded);
    REQUIRE(f.store.absence(id).error == Error::kUnloaded);
    REQUIRE(f.store.absence(id, "another").error == Error::kNotFound);
  }
  REQUIRE(f.store.bytes_in_use() == bytes);
  REQUIRE(f.store.lease(kept).refusal.error == Error::kNone);
  REQUIRE(f.store.close_sessions(*f.model) == 0);
}

TEST_CASE("of sessions that went with their models the last ones are remembered") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const std::string first = f.create();
  f.store.close_sessions(*f.model);
  REQUIRE(f.store.absence(first).error == Error::kUnloaded);
  std::string last;
  for (std::size_t left = ClosedSessions::kMost; left > 0;) {
    for (int i = 0; i < 100 && left > 0; ++i, --left) last = f.create();
    f.store.close_sessions(*f.model);
  }
  REQUIRE(f.store.absence(first).error == Error::kNotFound);
  REQUIRE(f.store.absence(last).error == Error::kUnloaded);
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
  REQUIRE(f.store.bytes_in_use() == f.session_bytes);
}

TEST_CASE("memory beyond the budget is refused with the figures, one-shot calls included",
          "[threat-56]") {
  StoreFixture f({});
  SessionManager store({.session_memory_bytes = f.session_bytes + 3 * f.bytes_each + 1}, f.clock);
  const auto session = store.create("tiny", f.model, 0);
  auto call = store.lease_one_shot("tiny", f.model, 30, /*num_samples=*/3);
  REQUIRE(call.refusal.error == Error::kNone);
  REQUIRE(call.lease.session_id().empty());
  REQUIRE(store.bytes_in_use() == f.session_bytes + 3 * f.bytes_each);
  const auto refused = store.create("tiny", f.model, 0);
  REQUIRE(refused.refusal.error == Error::kOutOfMemory);
  REQUIRE(refused.refusal.bytes_needed == f.session_bytes);
  REQUIRE(refused.refusal.bytes_free == 1);
  REQUIRE(store.lease_one_shot("tiny", f.model, 30, 1).refusal.error == Error::kOutOfMemory);
  call.lease = SessionLease();
  REQUIRE(store.bytes_in_use() == f.session_bytes);
  REQUIRE(store.create("tiny", f.model, 0).refusal.error == Error::kNone);
}

TEST_CASE("a refusal distinguishes requests that can never fit from those that have to wait") {
  StoreFixture f({});
  SessionManager store(
      {.session_memory_bytes = 4 * f.bytes_each, .bytes_per_owner = 2 * f.bytes_each}, f.clock);
  const auto large = store.lease_one_shot("tiny", f.model, 0, /*num_samples=*/3, "alice");
  CHECK(large.refusal.error == Error::kTooLarge);
  CHECK(large.refusal.bytes_needed == 3 * f.bytes_each);
  CHECK(large.refusal.bytes_free == 2 * f.bytes_each);
  const auto held = store.lease_one_shot("tiny", f.model, 0, 2, "alice");
  REQUIRE(held.refusal.error == Error::kNone);
  CHECK(store.lease_one_shot("tiny", f.model, 0, 1, "alice").refusal.error ==
        Error::kOwnerOutOfMemory);
  CHECK(store.lease_one_shot("tiny", f.model, 0, 2, "bob").refusal.error == Error::kNone);
}

TEST_CASE("idle sessions go before anything is refused") {
  StoreFixture f({});
  SessionManager store(
      {.max_sessions = 1, .session_memory_bytes = f.session_bytes, .idle_timeout = seconds(10)},
      f.clock);
  const std::string id = store.create("tiny", f.model, 0).info.id;
  REQUIRE(store.create("tiny", f.model, 0).refusal.error == Error::kTooManySessions);
  REQUIRE(store.lease_one_shot("tiny", f.model, 0, 1).refusal.error == Error::kOutOfMemory);
  f.clock.advance(seconds(10));
  REQUIRE(store.create("tiny", f.model, 0).refusal.error == Error::kNone);
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
  REQUIRE(f.store.create("tiny", f.model, 0).info.max_tokens == 30);
  REQUIRE(f.store.create("tiny", f.model, 12).info.max_tokens == 12);
  REQUIRE(f.store.create("tiny", f.model, 31).info.max_tokens == 30);
  const auto unbounded = tiny_model(TinyModel::kTokens);
  REQUIRE(f.store.create("tokens", unbounded, 0).info.max_tokens == 0);
  REQUIRE(f.store.create("tokens", unbounded, 9).info.max_tokens == 9);
  // The admitted length of a one-shot call does not end its sequence.
  REQUIRE(f.store.lease_one_shot("tiny", f.model, 5, 1).lease.max_tokens() == 30);
}

TEST_CASE("a state that grows is admitted by the tokens it may come to hold") {
  const std::string attention = GENERATE("softmax", "lsh");
  CAPTURE(attention);
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const auto unbounded = tiny_model(TinyModel::kTokens, attention);
  const auto admitted = [&](std::int64_t max_tokens) {
    const std::size_t before = f.store.bytes_in_use();
    const auto created = f.store.create("growing", unbounded, max_tokens);
    REQUIRE(created.refusal.error == Error::kNone);
    REQUIRE(created.info.max_tokens == max_tokens);
    REQUIRE(f.store.bytes_in_use() - before == created.info.state_bytes);
    return created.info.state_bytes;
  };
  // The last token is never fed.
  CHECK(admitted(100) == SessionManager::session_bytes(*unbounded, {.max_tokens = 100}));
  CHECK(admitted(10'000) == SessionManager::session_bytes(*unbounded, {.max_tokens = 10'000}));
  CHECK(admitted(100) > SessionManager::admitted_bytes(*unbounded, 99) + 100);
  CHECK(admitted(100) < SessionManager::admitted_bytes(*unbounded, 99) + 1024);
  CHECK(admitted(10'000) > 50 * admitted(100));

  // Without a limit there is no telling.
  CHECK(f.store.create("growing", unbounded, 0).refusal.error == Error::kNeedsMaxTokens);
  CHECK(f.store.lease_one_shot("growing", unbounded, 0, 1).refusal.error == Error::kNeedsMaxTokens);
  // The model's own limit will do.
  const auto bounded = tiny_model(TinyModel::kImage, attention);
  CHECK(f.store.create("image", bounded, 0).info.state_bytes ==
        SessionManager::session_bytes(*bounded, {}));

  // More than fits, and more than can be counted.
  for (const std::int64_t most : {std::int64_t{100'000'000}, std::int64_t{1} << 53}) {
    const auto refused = f.store.create("growing", unbounded, most);
    CHECK(refused.refusal.error == Error::kTooLarge);
    CHECK(refused.refusal.bytes_needed >= std::size_t{1} << 30);
    CHECK(f.store.lease_one_shot("growing", unbounded, most, 64).refusal.error == Error::kTooLarge);
  }
}

TEST_CASE("samples of a state that grows are admitted each") {
  StoreFixture f({.session_memory_bytes = 1u << 30});
  const auto model = tiny_model(TinyModel::kTokens, "softmax");
  const auto leased = f.store.lease_one_shot("growing", model, 500, 3);
  REQUIRE(leased.refusal.error == Error::kNone);
  CHECK(f.store.bytes_in_use() == 3 * SessionManager::admitted_bytes(*model, 499));
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

TEST_CASE("capacity: the sessions and tokens of a model that fit into the memory") {
  ManualClock clock;
  const auto capacity = [&](const Transformer& model, std::size_t bytes) {
    return SessionManager({.session_memory_bytes = bytes}, clock).capacity(model);
  };
  const std::string attention = GENERATE("linear", "softmax");
  CAPTURE(attention);
  const auto model = tiny_model(TinyModel::kTokens, attention);  // without an end
  const bool grows = attention == "softmax";
  const std::int64_t tokens = grows ? SessionManager::kCapacityTokens : 0;
  const std::size_t each =
      SessionManager::session_bytes(*model, {.max_tokens = tokens}, SessionManager::kHistoryTokens);
  CHECK(capacity(*model, 3 * each - 1).sessions == 2);
  const SessionManager::Capacity three = capacity(*model, 3 * each);
  CHECK(three.sessions == 3);
  CHECK(three.session_tokens == tokens);
  if (!grows) {
    CHECK(three.tokens == 0);
    return;
  }
  // One token more would not fit.
  CHECK(SessionManager::admitted_bytes(*model, three.tokens - 1) <= 3 * each);
  CHECK(SessionManager::admitted_bytes(*model, three.tokens) > 3 * each);
  CHECK(capacity(*model, 1).tokens == 0);
  // An end that comes earlier.
  const auto image = tiny_model(TinyModel::kImage, attention);
  const SessionManager::Capacity whole = capacity(*image, 1u << 30);
  CHECK(whole.session_tokens == image->config().max_tokens());
  CHECK(whole.tokens == image->config().max_tokens());
}

TEST_CASE("memory that is set later is nothing until then") {
  ManualClock clock;
  SessionManager store({.session_memory_bytes = kAutoBytes}, clock);
  CHECK(store.options().session_memory_bytes == 0);
  CHECK(store.admit_bytes("a", 1).refusal.error == Error::kTooLarge);
  store.set_memory(100);
  CHECK(store.options().session_memory_bytes == 100);
  CHECK_FALSE(store.admit_bytes("a", 100).refusal);
  CHECK(store.admit_bytes("a", 101).refusal.error == Error::kTooLarge);
}

}  // namespace
}  // namespace lintel::testing
