// SPDX-License-Identifier: Apache-2.0
// Quotas: limits of one identity's streams and tokens. Independent of gRPC.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace lintel {

// Streams, and tokens a second. (Sessions and memory are the SessionManager's.) Tokens are paid for
// as they are read and produced. A call whose identity has nothing saved up pauses until it has
// some: however many streams an identity opens, and however long they are, it gets its tokens a
// second and one burst, and the tokens of a step in progress. All its calls share that.
//
// Thread-safe; called at the beginning and the end of a call, and once a step if tokens are
// limited.
class Quotas {
 public:
  struct Limits {
    int max_streams = 0;                 // 0: no limit
    std::int64_t tokens_per_second = 0;  // 0: no limit
    std::int64_t token_burst = 0;        // saved up at most; 0: ten seconds' worth
  };

  // The clock outlives the object.
  Quotas(const Limits& limits, const Clock& clock);

  // Counts a stream in; false if the identity has as many as it may have.
  bool enter_stream(const std::string& identity) EXCLUDES(mutex_);
  // The stream runs no more, and its place is free before its client knows: a client that waits for
  // one stream's status may open the next at once. Until leave_stream it is still on the wire, and
  // kMostOnTheWire of those keep an identity out: clients that take no status cannot pile them up.
  void finish_stream(const std::string& identity) EXCLUDES(mutex_);
  void leave_stream(const std::string& identity) EXCLUDES(mutex_);  // REQUIRES: finished

  static constexpr int kMostOnTheWire = 64;

  // Takes `tokens` from what the identity has saved up, or as a debt beyond it. Returns zero if it
  // may continue, else the time until it is out of debt.
  Duration pay(const std::string& identity, std::int64_t tokens) EXCLUDES(mutex_);
  // Zero, or the time until a call may begin: the identity is so deep in debt that it would wait
  // for longer than kLongestWait before its first token.
  Duration wait_to_begin(const std::string& identity) EXCLUDES(mutex_);
  static constexpr std::chrono::seconds kLongestWait{10};

  const Limits& limits() const { return limits_; }

 private:
  struct Account {
    int streams = 0;
    int on_the_wire = 0;  // finished, and not gone
    double tokens = 0;    // saved up; negative: a debt
    TimePoint updated;
  };
  // The time until an account is out of debt.
  Duration debt(const Account& account) const;
  // The identity's account, credited with the tokens that accrued since its last update.
  Account& account(const std::string& identity) REQUIRES(mutex_);

  const Limits limits_;  // token_burst settled
  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Account> accounts_ GUARDED_BY(mutex_);  // none equals a new one
};

// The allowance that the requests of one call pay from.
class QuotaAllowance final : public TokenAllowance {
 public:
  // The quotas outlive the object. REQUIRES: the identity is in a stream while pay() is called.
  QuotaAllowance(Quotas& quotas, std::string identity)
      : quotas_(quotas), identity_(std::move(identity)) {}
  Duration pay(std::int64_t tokens) override { return quotas_.pay(identity_, tokens); }

 private:
  Quotas& quotas_;
  const std::string identity_;
};

}  // namespace lintel
