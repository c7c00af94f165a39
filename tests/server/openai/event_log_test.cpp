// SPDX-License-Identifier: Apache-2.0
// Events of a response for those that follow it.
#include "server/openai/event_log.h"

#include <memory>
#include <string>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

v1::ResponseEvents numbered_events(int first, int count) {
  v1::ResponseEvents events;
  for (int i = 0; i < count; ++i) events.add_events()->set_type(std::to_string(first + i));
  return events;
}

struct CountingFollower : EventLog::Follower {
  void on_more() override { ++calls; }
  int calls = 0;
};

TEST_CASE("event log: it is read from any event on, in pieces, up to its end") {
  EventLog log;
  const auto follower = std::make_shared<CountingFollower>();
  log.follow(follower);
  log.append(numbered_events(0, 3));
  log.append(numbered_events(1, 4), /*first=*/2);  // 3 and 4
  log.append(numbered_events(5, 0));               // nothing
  CHECK(follower->calls == 2);
  v1::ResponseEvents read;
  CHECK_FALSE(log.read(0, 2, read));
  REQUIRE(read.events_size() == 2);
  CHECK_FALSE(log.read(2, 100, read));
  REQUIRE(read.events_size() == 5);
  for (int i = 0; i < 5; ++i) CHECK(read.events(i).type() == std::to_string(i));
  log.close("whole");
  CHECK(follower->calls == 3);
  CHECK_FALSE(log.read(3, 1, read));
  CHECK(read.response().empty());
  read.Clear();
  CHECK(log.read(4, 1, read));
  CHECK(read.events_size() == 1);
  CHECK(read.response() == "whole");
  read.Clear();
  CHECK(log.read(9, 1, read));  // beyond its end
  CHECK(read.events_size() == 0);
}

TEST_CASE("event log: it keeps the last events within its bound, and says which it has dropped",
          "[threat-86]") {
  EventLog log;
  v1::ResponseEvents large = numbered_events(0, 1);
  large.mutable_events(0)->set_body(std::string(EventLog::kMostBytes / 4, 'x'));
  for (int i = 0; i < 10; ++i) log.append(large);
  CHECK(log.has_dropped(0));
  CHECK(log.has_dropped(6));
  CHECK_FALSE(log.has_dropped(7));
  v1::ResponseEvents read;
  CHECK_FALSE(log.read(0, 100, read));
  CHECK(read.events_size() == 0);
  CHECK_FALSE(log.read(7, 100, read));
  CHECK(read.events_size() == 3);
  // One that is larger than the bound is not kept.
  large.mutable_events(0)->set_body(std::string(EventLog::kMostBytes, 'x'));
  log.append(large);
  CHECK(log.has_dropped(10));
  CHECK_FALSE(log.has_dropped(11));
  log.close("whole");
  read.Clear();
  CHECK(log.read(11, 1, read));
  CHECK(read.response() == "whole");
}

TEST_CASE("event log: a follower that is gone is not called") {
  EventLog log;
  auto follower = std::make_shared<CountingFollower>();
  log.follow(follower);
  follower.reset();
  log.append(numbered_events(0, 1));
  log.close("");
}

}  // namespace
}  // namespace lintel::testing
