// SPDX-License-Identifier: Apache-2.0
// The order in which calls get memory that they wait for.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/sessions/session_memory.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {
namespace {

struct CountingWaiter final : MemoryWaiter {
  void on_memory() noexcept override { ++calls; }
  int calls = 0;
};

// Memory of 100 bytes, and calls that wait for it.
struct LineFixture {
  explicit LineFixture(std::size_t bytes_per_owner = 0)
      : memory({.bytes = 100, .bytes_per_owner = bytes_per_owner}) {
    memory.notify_first(&line);
  }

  struct Call {
    Call(std::string call_name, std::size_t bytes) : name(std::move(call_name)), ticket(bytes) {}
    std::string name;
    MemoryLine::Ticket ticket;
  };

  // Takes memory that is free now.
  void take(std::size_t bytes) {
    held.push_back(std::make_unique<SessionMemory::Reservation>(memory.take("other", bytes)));
  }
  // A call that is named by its caller and its number.
  Call& join(const std::string& caller, int number, std::size_t bytes, const Owner& owner = {}) {
    auto call = std::make_unique<Call>(caller + std::to_string(number), bytes);
    line.join(call->ticket, caller, owner, waiter);
    calls.push_back(std::move(call));
    return *calls.back();
  }
  // Ends one after the other of those that have memory, and returns the order in which they had it.
  std::vector<std::string> order() {
    std::vector<std::string> names;
    while (true) {
      const auto next =
          std::ranges::find_if(calls, [](const auto& call) { return call->ticket.is_granted(); });
      if (next == calls.end()) return names;
      names.push_back((*next)->name);
      const std::unique_ptr<Call> ended = std::move(*next);
      calls.erase(next);
    }
  }

  ManualClock clock;
  SessionMemory memory;
  MemoryLine line{[this](const Owner& owner, std::size_t bytes) {
                    return memory.reserve(owner, bytes, /*takes_place=*/false);
                  },
                  [this](SessionError, const Owner&) {
                    if (idle.empty()) return false;
                    idle.pop_back();
                    return true;
                  },
                  clock};
  CountingWaiter waiter;
  std::vector<std::unique_ptr<SessionMemory::Reservation>> held;
  std::vector<std::unique_ptr<SessionMemory::Reservation>> idle;  // make room for calls
  std::vector<std::unique_ptr<Call>> calls;
};

TEST_CASE("a line gives memory to callers in turns, and to each in the order of its calls",
          "[threat-55]") {
  LineFixture f;
  f.take(100);
  for (int i = 1; i <= 3; ++i) f.join("a", i, 100);
  f.join("b", 1, 100);
  f.join("c", 1, 100);
  f.join("b", 2, 100);
  CHECK(f.line.size() == 6);
  CHECK(f.waiter.calls == 0);
  f.held.clear();
  CHECK(f.order() == std::vector<std::string>{"a1", "b1", "c1", "a2", "b2", "a3"});
  CHECK(f.waiter.calls == 6);
  CHECK(f.line.size() == 0);
  CHECK(f.memory.bytes_in_use() == 0);
}

TEST_CASE("a smaller call never overtakes the one whose turn it is") {
  LineFixture f;
  f.take(40);
  f.take(60);
  const LineFixture::Call& large = f.join("a", 1, 80);
  const LineFixture::Call& small = f.join("b", 1, 10);
  const LineFixture::Call& next = f.join("a", 2, 10);
  f.held.erase(f.held.begin());  // 40 are free
  CHECK_FALSE(large.ticket.is_granted());
  CHECK_FALSE(small.ticket.is_granted());
  CHECK_FALSE(next.ticket.is_granted());
  f.held.clear();
  // All that fit beside it have memory at once.
  CHECK(large.ticket.is_granted());
  CHECK(small.ticket.is_granted());
  CHECK(next.ticket.is_granted());
}

TEST_CASE("a call that its owner's limit holds up lets other callers pass") {
  LineFixture f(/*bytes_per_owner=*/50);
  const SessionMemory::Reservation own = f.memory.take("alice", 40);
  f.take(60);
  const LineFixture::Call& alice = f.join("a", 1, 20, "alice");
  const LineFixture::Call& bob = f.join("b", 1, 20, "bob");
  CHECK_FALSE(bob.ticket.is_granted());
  f.held.clear();
  CHECK(bob.ticket.is_granted());
  CHECK_FALSE(alice.ticket.is_granted());
}

TEST_CASE("a call that leaves the line makes way for those after it") {
  LineFixture f;
  f.take(60);
  f.join("a", 1, 100);
  const LineFixture::Call& small = f.join("b", 1, 40);
  CHECK_FALSE(small.ticket.is_granted());
  f.calls.erase(f.calls.begin());
  CHECK(small.ticket.is_granted());
  CHECK(f.line.size() == 0);
}

TEST_CASE("room that is made for a call may be used at once by one that joins the line") {
  struct Joiner final : CapacityListener {
    explicit Joiner(LineFixture& fixture) : f(fixture) {}
    void on_room() noexcept override {
      if (call == nullptr) call = &f.join("b", 1, 10);
    }
    LineFixture& f;
    const LineFixture::Call* call = nullptr;
  };
  LineFixture f;
  f.idle.push_back(std::make_unique<SessionMemory::Reservation>(f.memory.take("other", 100)));
  const auto joiner = std::make_shared<Joiner>(f);
  f.memory.waiting_room().join(joiner);
  const LineFixture::Call& first = f.join("a", 1, 60);
  CHECK(first.ticket.is_granted());
  REQUIRE(joiner->call != nullptr);
  CHECK(joiner->call->ticket.is_granted());
  CHECK(f.memory.bytes_in_use() == 70);
}

TEST_CASE("a line counts the calls that wait, and the time of those that got memory") {
  LineFixture f;
  f.take(100);
  f.join("a", 1, 100);
  CHECK(f.line.stats().waiting == 1);
  f.clock.advance(std::chrono::seconds(3));
  f.held.clear();
  const MemoryLine::Stats stats = f.line.stats();
  CHECK(stats.waiting == 0);
  CHECK(stats.waited.total() == 1);
  CHECK(stats.waited.sum == 3);
}

}  // namespace
}  // namespace lintel::testing
