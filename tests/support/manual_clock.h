// SPDX-License-Identifier: Apache-2.0
// A clock that moves when a test says so.
#pragma once

#include <atomic>

#include "server/core/clock.h"

namespace lintel::testing {

// Thread-safe. Wall time moves along with the other.
class ManualClock : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }
  std::chrono::system_clock::time_point wall_time() const override {
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(Duration(ticks_.load())));
  }
  void advance(Duration by) { ticks_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> ticks_{std::chrono::nanoseconds(std::chrono::hours(1000)).count()};
};

}  // namespace lintel::testing
