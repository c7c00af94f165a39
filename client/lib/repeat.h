// Calls on sessions that outlive the server (Session.durability): when a call that was cut off is
// sent again, how long after, and what of its values was seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>

#include "client/lib/call_error.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/session.pb.h"

namespace lintel {

// 128 random bits in hexadecimal.
std::string random_call_id();

// Whether the server may be gone, so that another one can do the call. A server that shuts down
// cancels calls that do not end in time: REQUIRES that this side has not cancelled the call.
bool names_a_lost_server(const CallError& error);

// Whether the call may go through when it is sent again. `sent`: it was before, and may still run
// on the server, which then says ABORTED, or has to find its place there once more. REQUIRES as
// above.
bool worth_repeating(const CallError& error, bool sent);

// How long to wait between tries: 100 ms, doubling to 2 s, each up to a fifth longer or shorter, so
// that clients that lost their server together do not come back together; at least as long as the
// server says. All of it for at most `patience` since something came.
class RepeatPauses {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RepeatPauses(std::chrono::milliseconds patience) : patience_(patience) {}

  void something_came();
  // After a failure. Nothing: patience is at its end.
  std::optional<std::chrono::milliseconds> next(const CallError& error,
                                                Clock::time_point now = Clock::now());
  // Until it is. REQUIRES: the last call was of next().
  std::chrono::milliseconds left(Clock::time_point now = Clock::now()) const;

 private:
  const std::chrono::milliseconds patience_;
  std::optional<Clock::time_point> give_up_;  // set by the first failure since something came
  std::chrono::milliseconds pause_{0};        // without jitter; 0: none yet
  std::minstd_rand random_{std::random_device{}()};
};

// The positions of a call that were seen, which its repeats do not say again.
class SeenPositions {
 public:
  explicit SeenPositions(std::int64_t from) : next_(from) {}

  // The first one that was not; what a repeat asks for from.
  std::int64_t next() const { return next_; }
  // What of the chunk was not; null: all was. Valid until the next call, and as long as the chunk.
  // Throws CallError with INTERNAL where positions are left out.
  const v1::Chunk* new_part(const v1::Chunk& chunk);

 private:
  std::int64_t next_;
  bool any_ = false;
  v1::Chunk cut_;
};

// Which sessions outlive the server, as far as the server has said.
//
// Threads: any.
class KnownDurability {
 public:
  void note(const v1::Session& session);
  std::optional<bool> of(const std::string& id) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, bool> durable_;  // by id; guarded by mutex_
};

}  // namespace lintel
