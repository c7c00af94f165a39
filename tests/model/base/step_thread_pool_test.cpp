// SPDX-License-Identifier: Apache-2.0
#include "model/core/step_thread_pool.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel {
namespace {

struct Part {
  std::size_t begin, end;
  bool is_leader;
  bool operator==(const Part&) const = default;
};

TEST_CASE("a team of one does all of the work at once") {
  StepThreadPool team;
  std::vector<Part> parts;
  team.split(7, [&](std::size_t begin, std::size_t end, bool is_leader) {
    parts.push_back({begin, end, is_leader});
  });
  CHECK(parts == std::vector<Part>{{0, 7, true}});
  CHECK(team.threads() == 1);
  split_among(nullptr, 3, [&](std::size_t begin, std::size_t end, bool is_leader) {
    parts.push_back({begin, end, is_leader});
  });
  CHECK(parts.back() == Part{0, 3, true});
  split_among(&team, 0, [&](std::size_t, std::size_t, bool) { FAIL(); });
}

TEST_CASE("a leader does the parts that a late helper has not started") {
  StepThreadPool team;
  const std::size_t seat = team.sit_down(1);
  REQUIRE(seat == 1);
  CHECK(team.threads() == 2);
  std::vector<int> done(10);
  team.split(10, [&](std::size_t begin, std::size_t end, bool is_leader) {
    CHECK(is_leader);
    for (; begin < end; ++begin) ++done[begin];
  });
  CHECK(done == std::vector<int>(10, 1));
  CHECK_FALSE(team.help(seat));  // there is nothing left for it
}

TEST_CASE("seats are taken from the first on, and as many as are wanted") {
  StepThreadPool team;
  CHECK(team.sit_down(0) == 0);
  CHECK(team.sit_down(2) == 1);
  CHECK(team.sit_down(2) == 2);
  CHECK(team.sit_down(2) == 0);
  CHECK(team.sit_down(3) == 3);
  team.stand_up(2);
  CHECK(team.threads() == 3);
  CHECK(team.sit_down(3) == 2);
  for (std::size_t seat = 4; seat < StepThreadPool::kMostThreads; ++seat) {
    CHECK(team.sit_down(SIZE_MAX) == seat);
  }
  CHECK(team.sit_down(SIZE_MAX) == 0);
  CHECK(team.threads() == StepThreadPool::kMostThreads);
  team.use(4);
  CHECK(team.threads() == 4);
}

TEST_CASE("128 threads share work, each in its place") {
  StepThreadPool team;
  for (std::size_t seat = 1; seat < 128; ++seat) REQUIRE(team.sit_down(SIZE_MAX) == seat);
  CHECK(team.threads() == 128);
  // The last seat's helper comes while the leader is at its first part; the others are late.
  std::vector<Part> by_helper;
  std::vector<int> done(256);
  bool has_come = false;
  team.split(256, [&](std::size_t begin, std::size_t end, bool is_leader) {
    if (!is_leader) by_helper.push_back({begin, end, is_leader});
    for (std::size_t i = begin; i < end; ++i) ++done[i];
    if (is_leader && !std::exchange(has_come, true)) CHECK(team.help(127));
  });
  CHECK(done == std::vector<int>(256, 1));
  REQUIRE_FALSE(by_helper.empty());
  CHECK(by_helper.front() == Part{254, 255, false});
  team.stand_up(100);
  CHECK(team.threads() == 127);
  CHECK(team.sit_down(SIZE_MAX) == 100);
}

TEST_CASE("helpers do a part of the work, and no part is done twice") {
  StepThreadPool team;
  StepHelpers helpers(team, 3);
  std::atomic<std::size_t> by_helpers{0};
  std::size_t turn = 0;
  for (; turn < 3'000 || (by_helpers == 0 && turn < 3'000'000); ++turn) {
    const std::size_t count = turn % 37;
    team.use(1 + turn % 5);
    std::vector<int> done(count);
    split_among(&team, count, [&](std::size_t begin, std::size_t end, bool is_leader) {
      if (!is_leader) by_helpers += end - begin;
      for (; begin < end; ++begin) ++done[begin];
    });
    REQUIRE(done == std::vector<int>(count, 1));
  }
  CHECK(by_helpers > 0);
}

TEST_CASE("a helper that has done its share takes what is left of a slow leader's") {
  StepThreadPool team;
  const StepHelpers helpers(team, 1);
  std::atomic<int> by_helper{0};
  team.split(8, [&](std::size_t begin, std::size_t end, bool is_leader) {
    if (!is_leader) {
      by_helper += static_cast<int>(end - begin);
      return;
    }
    CHECK(begin == 0);
    CHECK(end == 2);  // of 0 .. 3
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (by_helper < 6 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  CHECK(by_helper == 6);
}

TEST_CASE("helpers may come and go while there is work") {
  StepThreadPool team;
  std::atomic<bool> stop{false};
  std::vector<std::thread> guests;
  for (int i = 0; i < 2; ++i) {
    guests.emplace_back([&] {
      while (!stop) {
        const std::size_t seat = team.sit_down(3);
        for (int looks = 0; looks < 20; ++looks) team.help(seat);
        team.stand_up(seat);
      }
    });
  }
  for (int turn = 0; turn < 3'000; ++turn) {
    std::vector<int> done(16);
    team.split(16, [&](std::size_t begin, std::size_t end, bool) {
      for (; begin < end; ++begin) ++done[begin];
    });
    REQUIRE(done == std::vector<int>(16, 1));
  }
  stop = true;
  for (std::thread& guest : guests) guest.join();
}

TEST_CASE("exception in a part: thrown by the leader once every thread has ended, and not again",
          "[threat-66]") {
  const bool by_helper = GENERATE(true, false);
  CAPTURE(by_helper);
  StepThreadPool team;
  const std::size_t seat = team.sit_down(1);
  REQUIRE(seat == 1);
  std::atomic<bool> is_over{false}, helper_is_in{false};
  std::thread helper([&] {
    while (!is_over) team.help(seat);
  });
  // The leader's part waits until the helper's has started, and the other way round.
  std::atomic<int> inside{0};
  const auto work = [&](std::size_t, std::size_t, bool is_leader) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
    if (!is_leader) helper_is_in = true;
    if (is_leader != by_helper) throw std::runtime_error(is_leader ? "leader" : "helper");
  };
  CHECK_THROWS_WITH(team.split(2, work), by_helper ? "helper" : "leader");
  CHECK(helper_is_in);
  std::vector<std::atomic<int>> done(100);
  team.split(100, [&](std::size_t begin, std::size_t end, bool) {
    for (; begin < end; ++begin) ++done[begin];
  });
  for (const auto& each : done) CHECK(each == 1);
  is_over = true;
  helper.join();
}

TEST_CASE("more parts than can be counted are one thread's") {
  StepThreadPool team;
  REQUIRE(team.sit_down(1) == 1);
  std::vector<Part> parts;
  team.split(70'000, [&](std::size_t begin, std::size_t end, bool is_leader) {
    parts.push_back({begin, end, is_leader});
  });
  CHECK(parts == std::vector<Part>{{0, 70'000, true}});
}

}  // namespace
}  // namespace lintel
