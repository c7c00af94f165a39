// SPDX-License-Identifier: Apache-2.0
// Clock: the time the server goes by, injected so that tests own it.
#pragma once

#include <chrono>
#include <cstdint>

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

// TokenAllowance: how fast a request may be served.

// What a request's tokens are paid from. Its sequences pause while there is nothing to pay with.
class TokenAllowance {
 public:
  virtual ~TokenAllowance() = default;
  // For tokens read and produced since the last time; 0: only asks. Zero when the request may go
  // on; else it has to pause for this long, and then to ask again. Called by one thread at a time.
  virtual Duration pay(std::int64_t tokens) = 0;
};

}  // namespace lintel
