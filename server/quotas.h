// Quotas: what one identity may have and use at a time. Free of gRPC.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "server/clock.h"
#include "server/mutex.h"

namespace lintel {

// Streams, and tokens a second. (Sessions and memory are the SessionStore's.) A stream is charged
// when it is accepted for the most tokens it may read and produce, and what it did not use is given
// back at its end: however many streams an identity opens, it gets its tokens a second and one
// burst.
//
// Thread-safe; asked once at the beginning of a call and once at its end, never per token.
class Quotas {
 public:
  struct Limits {
    int max_streams = 0;                 // 0: no limit
    std::int64_t tokens_per_second = 0;  // 0: no limit
    std::int64_t token_burst = 0;        // saved up at most; 0: ten seconds' worth
  };

  // The clock outlives the object.
  Quotas(const Limits& limits, const Clock& clock);

  // Counts a stream in; false when the identity has as many as it may.
  bool enter_stream(const std::string& identity) EXCLUDES(mutex_);
  // The stream runs no more, and its place is free before its client knows: who waits for one
  // stream's status may open the next at once. Until leave_stream it is still on the wire, and
  // kMostOnTheWire of those keep an identity out: clients that take no status cannot pile them up.
  void finish_stream(const std::string& identity) EXCLUDES(mutex_);
  void leave_stream(const std::string& identity) EXCLUDES(mutex_);  // REQUIRES: finished

  static constexpr int kMostOnTheWire = 64;

  // Takes `tokens` from what the identity has saved up. Zero when taken; else nothing is, and this
  // long from now it could be. More than a whole burst is taken from a full one, and leaves a debt.
  Duration charge(const std::string& identity, std::int64_t tokens) EXCLUDES(mutex_);
  // Gives back what was charged and not used.
  void refund(const std::string& identity, std::int64_t tokens) EXCLUDES(mutex_);

  const Limits& limits() const { return limits_; }

 private:
  struct Account {
    int streams = 0;
    int on_the_wire = 0;  // finished, and not gone
    double tokens = 0;    // saved up; negative: a debt
    TimePoint updated;
  };
  // The identity's account, what has come in since it was updated included.
  Account& account(const std::string& identity) REQUIRES(mutex_);

  const Limits limits_;  // token_burst settled
  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Account> accounts_ GUARDED_BY(mutex_);  // those that differ from a new one
};

}  // namespace lintel
