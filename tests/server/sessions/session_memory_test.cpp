// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_memory.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Error = SessionError;

TEST_CASE("memory and places are released with the reservation, moved or not") {
  SessionMemory memory({.bytes = 100, .places = 1});
  {
    SessionMemory::Result first = memory.reserve("a", 60, true);
    REQUIRE(first.refusal.error == Error::kNone);
    CHECK(first.refusal.bytes_free == 100);
    const SessionMemory::Reservation moved = std::move(first.reservation);
    CHECK(moved.owner() == "a");
    CHECK(moved.bytes() == 60);
    CHECK(memory.bytes_in_use() == 60);
    CHECK(memory.reserve("a", 10, true).refusal.error == Error::kTooManySessions);
    const SessionMemory::Result refused = memory.reserve("a", 41, false);
    CHECK(refused.refusal.error == Error::kOutOfMemory);
    CHECK(refused.refusal.bytes_free == 40);
  }
  CHECK(memory.bytes_in_use() == 0);
  CHECK(memory.reserve("b", 100, true).refusal.error == Error::kNone);
}

TEST_CASE("an owner's own limits are named before those of all") {
  SessionMemory memory({.bytes = 100, .places = 2, .bytes_per_owner = 50, .places_per_owner = 1});
  const SessionMemory::Result a = memory.reserve("a", 40, true);
  REQUIRE(a.refusal.error == Error::kNone);
  const SessionMemory::Result too_large = memory.reserve("a", 51, false);
  CHECK(too_large.refusal.error == Error::kTooLarge);
  CHECK(too_large.refusal.bytes_free == 50);  // the memory in all
  CHECK(memory.reserve("a", 20, true).refusal.error == Error::kOwnerTooManySessions);
  CHECK(memory.reserve("a", 20, false).refusal.error == Error::kOwnerOutOfMemory);
  const SessionMemory::Result b = memory.reserve("b", 50, true);
  REQUIRE(b.refusal.error == Error::kNone);
  CHECK(memory.reserve("c", 1, true).refusal.error == Error::kTooManySessions);
  CHECK(memory.reserve("c", 11, false).refusal.error == Error::kOutOfMemory);
}

TEST_CASE("memory is short when little of it or of an owner's share is left, or few places are") {
  SessionMemory memory({.bytes = 800, .bytes_per_owner = 400, .places_per_owner = 16});
  CHECK_FALSE(memory.is_short("a"));
  const SessionMemory::Result most_of_a = memory.reserve("a", 350, true);
  CHECK_FALSE(memory.is_short("a"));
  {
    const SessionMemory::Result rest_of_a = memory.reserve("a", 1, true);
    CHECK(memory.is_short("a"));
    CHECK_FALSE(memory.is_short("b"));
  }
  const SessionMemory::Result of_b = memory.reserve("b", 350, true);
  CHECK_FALSE(memory.is_short("c"));
  {
    const SessionMemory::Result of_c = memory.reserve("c", 1, true);
    CHECK(memory.is_short("a"));
    CHECK(memory.is_short("d"));
  }
  std::vector<SessionMemory::Result> places;
  for (int i = 0; i < 15; ++i) {
    CHECK_FALSE(memory.is_short("e"));
    places.push_back(memory.reserve("e", 0, true));
  }
  CHECK(memory.is_short("e"));
}

// A softmax sequence of one token has no state.
TEST_CASE("nothing can be reserved any number of times") {
  SessionMemory memory({.bytes = 10});
  {
    const SessionMemory::Result first = memory.reserve("a", 0, false);
    const SessionMemory::Result second = memory.reserve("a", 0, false);
    CHECK(first.refusal.error == Error::kNone);
    CHECK(second.refusal.error == Error::kNone);
  }
  CHECK(memory.reserve("a", 10, false).refusal.error == Error::kNone);
}

TEST_CASE("threads that reserve and release at once never hold more than there is") {
  SessionMemory memory({.bytes = 100, .places = 3});
  std::atomic<int> places = 0;
  std::atomic<bool> too_many = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, owner = Owner(1, static_cast<char>('a' + i % 2))] {
      for (int k = 0; k < 5000; ++k) {
        const SessionMemory::Result held = memory.reserve(owner, 30, true);
        if (held.refusal.error != Error::kNone) continue;
        if (++places > 3 || memory.bytes_in_use() > 100) too_many = true;
        --places;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(too_many);
  CHECK(memory.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
