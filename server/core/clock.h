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
  // The time for deadlines, timeouts and timings.
  virtual TimePoint now() const = 0;
  // The time that people read: when a session was made and last used.
  virtual std::chrono::system_clock::time_point wall_time() const {
    return std::chrono::system_clock::now();
  }
};

class SteadyClock : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// Seconds since 1970, of the system's clock.
inline std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}
// The same when the program started: the date of models, which checkpoints do not have.
inline const std::int64_t kStartSeconds = unix_seconds();

// TokenAllowance: how fast a request may be served.

// The allowance that a request's tokens are paid from. Its sequences pause while it is used up.
class TokenAllowance {
 public:
  virtual ~TokenAllowance() = default;
  // Pays for tokens read and produced since the last call; 0 only asks. Returns zero if the request
  // may continue, else the time to pause before it asks again. Called by one thread at a time.
  virtual Duration pay(std::int64_t tokens) = 0;
};

}  // namespace lintel
