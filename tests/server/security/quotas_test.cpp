// SPDX-License-Identifier: Apache-2.0
// What one identity may have and use, and that it is kept to it when all come at once.
#include "server/security/quotas.h"

#include <atomic>
#include <thread>
#include <vector>

#include "server/sessions/session_manager.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a bucket gives its burst at once and its rate afterwards") {
  ManualClock clock;
  Quotas quotas({.tokens_per_second = 100, .token_burst = 500}, clock);
  CHECK(quotas.pay("a", 500) == Duration::zero());
  const Duration wait = quotas.pay("a", 50);
  CHECK(wait >= milliseconds(500));
  CHECK(wait <= milliseconds(501));
  clock.advance(wait);
  CHECK(quotas.pay("a", 0) == Duration::zero());
  CHECK(quotas.pay("a", 50) > Duration::zero());
  CHECK(quotas.pay("b", 500) == Duration::zero());
  // No more than a burst is saved up.
  clock.advance(seconds(1000));
  CHECK(quotas.pay("a", 500) == Duration::zero());
  CHECK(quotas.pay("a", 1) > Duration::zero());
}

TEST_CASE("a debt is paid off at the rate, and a deep one refuses new calls until it is smaller") {
  ManualClock clock;
  Quotas quotas({.tokens_per_second = 100, .token_burst = 500}, clock);
  CHECK(quotas.wait_to_begin("a") == Duration::zero());
  const Duration wait = quotas.pay("a", 2500);  // 500 down to -2000
  CHECK(wait >= seconds(20));
  CHECK(wait <= seconds(20) + milliseconds(1));
  const Duration to_begin = quotas.wait_to_begin("a");
  CHECK(to_begin >= seconds(20) - Quotas::kLongestWait);
  CHECK(to_begin <= wait - Quotas::kLongestWait);
  clock.advance(to_begin);
  CHECK(quotas.wait_to_begin("a") == Duration::zero());
  CHECK(quotas.pay("a", 0) > seconds(9));
  clock.advance(seconds(11));
  CHECK(quotas.pay("a", 0) == Duration::zero());
}

TEST_CASE("the burst is ten seconds' worth unless given, and no rate means no bucket") {
  ManualClock clock;
  Quotas limited({.tokens_per_second = 7}, clock);
  CHECK(limited.pay("a", 70) == Duration::zero());
  CHECK(limited.pay("a", 1) > Duration::zero());
  Quotas free({}, clock);
  for (int i = 0; i < 10; ++i) CHECK(free.pay("a", 1'000'000'000) == Duration::zero());
  for (int i = 0; i < 10; ++i) CHECK(free.enter_stream("a"));
}

TEST_CASE("a clock that goes back adds no tokens") {
  ManualClock clock;
  Quotas quotas({.tokens_per_second = 100, .token_burst = 200}, clock);
  CHECK(quotas.pay("a", 200) == Duration::zero());
  clock.advance(-seconds(3600));
  CHECK(quotas.pay("a", 0) == Duration::zero());
  CHECK(quotas.pay("a", 1) > Duration::zero());
  clock.advance(seconds(3601));
  CHECK(quotas.pay("a", 99) == Duration::zero());
  CHECK(quotas.pay("a", 1) > Duration::zero());
}

TEST_CASE("concurrent threads get no more than the limits", "[threat-53]") {
  ManualClock clock;
  Quotas quotas({.max_streams = 3, .tokens_per_second = 1, .token_burst = 1000}, clock);
  std::atomic<int> inside{0}, most{0};
  std::atomic<std::int64_t> paid_at_once{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (quotas.pay("a", 3) == Duration::zero()) paid_at_once += 3;
        if (!quotas.enter_stream("a")) continue;
        const int now = ++inside;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        --inside;
        quotas.finish_stream("a");
        quotas.leave_stream("a");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most <= 3);
  CHECK(paid_at_once == 999);
}

TEST_CASE(
    "a finished stream frees its place, and finished streams that are not taken are bounded") {
  ManualClock clock;
  Quotas quotas({.max_streams = 1}, clock);
  for (int i = 0; i < Quotas::kMostOnTheWire; ++i) {
    REQUIRE(quotas.enter_stream("a"));
    CHECK_FALSE(quotas.enter_stream("a"));
    quotas.finish_stream("a");
  }
  CHECK_FALSE(quotas.enter_stream("a"));
  CHECK(quotas.enter_stream("b"));
  quotas.leave_stream("a");
  CHECK(quotas.enter_stream("a"));
}

TEST_CASE("the store separates owners and counts the memory of each", "[threat-3]") {
  const auto model = tiny_model(TinyModel::kTokens);
  // A session keeps its tokens in addition to its state.
  const std::size_t each = SessionManager::session_bytes(*model, {.max_tokens = 1});
  const std::size_t one_shot_bytes = SessionManager::admitted_bytes(*model, 0);
  ManualClock clock;
  SessionManager::Options options;
  options.session_memory_bytes = 100 * each;
  options.max_sessions_per_owner = 2;
  options.bytes_per_owner = 2 * each + one_shot_bytes;
  SessionManager store(options, clock);
  using Error = SessionError;

  const auto first = store.create("m", model, 1, "alice");
  REQUIRE(first.refusal.error == Error::kNone);
  const std::string id = first.info.id;
  CHECK(store.create("m", model, 1, "alice").refusal.error == Error::kNone);
  CHECK(store.create("m", model, 1, "alice").refusal.error == Error::kOwnerTooManySessions);
  CHECK(store.create("m", model, 1, "bob").refusal.error == Error::kNone);
  CHECK(store.lease_one_shot("m", model, 0, 2, "alice").refusal.error == Error::kOwnerOutOfMemory);
  CHECK(store.lease_one_shot("m", model, 0, 1, "alice").refusal.error == Error::kNone);  // released
  CHECK(store.lease_one_shot("m", model, 0, 2, "bob").refusal.error == Error::kNone);

  for (const char* other : {"bob", "", "alic", "alice "}) {
    CHECK(store.lease(id, other).refusal.error == Error::kNotFound);
    CHECK_FALSE(store.get(id, other));
    CHECK(store.remove(id, other).error == Error::kNotFound);
  }
  CHECK(store.list("", "", 10, "alice").size() == 2);
  CHECK(store.list("", "", 10, "bob").size() == 1);
  CHECK(store.list("", "", 10).size() == 3);

  {
    const auto leased = store.lease(id, "alice");
    REQUIRE(leased.refusal.error == Error::kNone);
    CHECK(store.remove(id, "bob").error == Error::kNotFound);  // not even that it is busy
    const auto one_shot = store.lease_one_shot("m", model, 0, 2, "carol");
    const SessionManager::Stats stats = store.stats();
    CHECK(stats.busy_sessions == 1);
    CHECK(stats.idle_sessions == 2);
    CHECK(stats.busy_bytes == each);
    CHECK(stats.idle_bytes == 2 * each);
    CHECK(stats.one_shot_bytes == 2 * one_shot_bytes);
  }
  CHECK(store.remove(id, "alice").error == Error::kNone);
  CHECK(store.create("m", model, 1, "alice").refusal.error == Error::kNone);
  const SessionManager::Stats stats = store.stats();
  CHECK(stats.created == 4);
  CHECK(stats.evicted == 0);
  CHECK(stats.busy_sessions == 0);
  CHECK(stats.idle_bytes == 3 * each);
  CHECK(stats.one_shot_bytes == 0);
}

TEST_CASE("an owner's idle sessions make room for it as those of others do") {
  const auto model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager::Options options;
  options.session_memory_bytes = 1 << 20;
  options.max_sessions_per_owner = 1;
  options.idle_timeout = seconds(10);
  SessionManager store(options, clock);
  CHECK(store.create("m", model, 0, "alice").refusal.error == SessionError::kNone);
  CHECK(store.create("m", model, 0, "alice").refusal.error == SessionError::kOwnerTooManySessions);
  clock.advance(seconds(11));
  CHECK(store.create("m", model, 0, "alice").refusal.error == SessionError::kNone);
  CHECK(store.stats().evicted == 1);
}

}  // namespace lintel::testing
