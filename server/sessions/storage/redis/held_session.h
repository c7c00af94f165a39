// SPDX-License-Identifier: Apache-2.0
// HeldSession: a RedisStorage's record of a session that a call here has claimed.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "server/core/clock.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// The row after the last write, which only the holder changes, and as much of the past as is needed
// to write it again after a failover has lost it. Not thread-safe.
class HeldSession {
 public:
  using Row = SessionStorage::Row;

  // The tokens before row.position are in the store alone.
  HeldSession(SessionStorage::Claim claim, Row row, int width, std::shared_ptr<ClaimLease> lease);

  // A write in progress, and the data to send it.
  struct Sent {
    SessionStorage::Write::Kind kind{};  // of the last of several
    SessionStorage::Claim claim{};
    bool is_history = false;
    bool with_row = false;  // changes more than tokens
    bool is_renewal = false;
    std::uint64_t number = 0, least = 0;  // its own; the lowest that the store may have before it
    Row before, after;
    std::int64_t first = 0;            // position of the tokens
    std::vector<std::int32_t> tokens;  // added by it
    int width = 1;                     // bytes of each in the store
    std::vector<Digest> befores;       // digests that the store may have
    std::array<std::byte, 16> nonce{};
    std::vector<std::uint64_t> dropped;  // states that were put and are not kept
    TimePoint began{};
    int heals = 0;
    std::function<void(SessionError)> done;
  };
  using SentPtr = std::shared_ptr<Sent>;

  // Applies a write, as StorageSession::apply; `sent` receives the data to send. If it has a write
  // already that is not yet sent, this one joins it: the store will have both or neither.
  SessionError apply(const SessionStorage::Write& write, SentPtr* sent);
  // A write that only prolongs the lease.
  SentPtr renewal();
  // Receive the outcome of a write: it is stored, or not known to be.
  void stands(const Sent& sent);
  void is_refused(const Sent& sent, bool may_stand);

  // The tokens to write first if the store was rolled back to `digest`, before a write in progress.
  // Nothing: this session was never at `digest` on the way to that write.
  struct Missing {
    std::int64_t first = 0;
    std::vector<std::int32_t> tokens;
  };
  std::optional<Missing> missing(const Sent& sent, const Digest& digest) const;

  const Row& row() const { return row_; }
  const SessionStorage::Claim& claim() const { return claim_; }
  bool is_writing() const { return !flights_.empty(); }

  // Makes `sent` release the claim, and drop the states that were put and that no write names.
  void lets_go(Sent& sent);

  // Nonce and fence of the claim in the store, which differ after it was healed.
  std::array<std::byte, 16> nonce;
  std::uint64_t fence;
  int width;                    // bytes of the tokens there
  std::set<std::uint64_t> put;  // states that no row names yet
  std::shared_ptr<ClaimLease> lease;
  TimePoint granted{};  // the time of the last request that prolonged it
  bool is_healing = false;
  // True after a release with unknown outcome. The caller tries again, or the lease ends.
  bool is_given_up = false;
  std::vector<SentPtr> after_healing;

 private:
  struct Mark {
    Digest digest;
    std::int64_t position = 0;
  };

  SentPtr next();
  void mark();
  // Forgets tokens: those before row_.position are in the store alone.
  void forget_tail();

  SessionStorage::Claim claim_;
  Row row_;
  std::uint64_t last_ = 0, known_ = 0;  // numbers of the last write and the last stored one
  std::vector<Digest> maybe_;           // of writes with unknown outcome
  struct Flight {
    std::uint64_t number = 0;
    Row before;
    bool is_renewal = false;
  };
  std::deque<Flight> flights_;
  std::deque<Mark> marks_;  // the last 1,024 of the chain
  std::vector<std::int32_t> tail_;
  std::int64_t tail_first_ = 0;  // position of the first one
};

}  // namespace lintel
