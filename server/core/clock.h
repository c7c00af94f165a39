// Clock: the time the server goes by, injected so that tests own it.
#pragma once

#include <chrono>

namespace lintel {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // For deadlines, timeouts and timings.
  virtual TimePoint now() const = 0;
  // For what people read: when a session was made and last used.
  virtual std::chrono::system_clock::time_point wall_time() const {
    return std::chrono::system_clock::now();
  }
};

class SteadyClock : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace lintel
