// SPDX-License-Identifier: Apache-2.0
// Waiters for room: notified once, with nothing missed and no recursion.
#include <functional>

#include "server/core/notification.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct CountingListener final : CapacityListener {
  void on_room() noexcept override {
    ++calls;
    if (then) then();
  }
  int calls = 0;
  std::function<void()> then;
};

TEST_CASE("a waiter is notified once, however often it joined") {
  CapacityListeners room;
  const auto waiter = std::make_shared<CountingListener>();
  room.tell();
  CHECK(waiter->calls == 0);
  room.join(waiter);
  room.join(waiter);
  room.tell();
  CHECK(waiter->calls == 1);
  room.tell();
  CHECK(waiter->calls == 1);
}

TEST_CASE("a destroyed waiter is not notified") {
  CapacityListeners room;
  int calls = 0;
  {
    const auto gone = std::make_shared<CountingListener>();
    gone->then = [&] { ++calls; };
    room.join(gone);
  }
  room.tell();
  CHECK(calls == 0);
}

TEST_CASE("a waiter that joins again while it is notified waits for the next room") {
  CapacityListeners room;
  const auto waiter = std::make_shared<CountingListener>();
  waiter->then = [&] { room.join(waiter); };
  room.join(waiter);
  room.tell();
  CHECK(waiter->calls == 1);
  room.tell();
  CHECK(waiter->calls == 2);
  waiter->then = nullptr;
}

TEST_CASE("room that a waiter makes is reported after its call, not within") {
  CapacityListeners room;
  const auto first = std::make_shared<CountingListener>();
  const auto second = std::make_shared<CountingListener>();
  int depth = 0;
  int deepest = 0;
  const auto makes_room = [&](CountingListener& self,
                              const std::shared_ptr<CountingListener>& other) {
    return [&, other] {
      deepest = std::max(deepest, ++depth);
      if (self.calls < 100) {
        room.join(other);
        room.tell();
      }
      --depth;
    };
  };
  first->then = makes_room(*first, second);
  second->then = makes_room(*second, first);
  room.join(first);
  room.tell();
  CHECK(first->calls + second->calls > 100);
  CHECK(deepest == 1);
  first->then = second->then = nullptr;
}

}  // namespace
}  // namespace lintel::testing
