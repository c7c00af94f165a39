// SPDX-License-Identifier: Apache-2.0
// HeldSession: what a RedisStorage knows of a session that a call here has claimed.
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

// The row as the last write leaves it, which only the holder changes; and of what came before, what
// it takes to write it once more where a failover has lost it. Not thread-safe.
class HeldSession {
 public:
  using Row = SessionStorage::Row;

  // The tokens before row.position are in the store alone.
  HeldSession(SessionStorage::Claim claim, Row row, int width, std::shared_ptr<ClaimLease> lease);

  // A write that is on its way, and what it takes to send it.
  struct Sent {
    SessionStorage::Write::Kind kind{};  // of several: of the last
    SessionStorage::Claim claim{};
    bool is_history = false;
    bool with_row = false;  // more than tokens
    bool is_renewal = false;
    std::uint64_t number = 0, least = 0;  // its own; the lowest that may stand before it
    Row before, after;
    std::int64_t first = 0;            // position of the tokens
    std::vector<std::int32_t> tokens;  // that it adds
    int width = 1;                     // in bytes, of each in the store
    std::vector<Digest> befores;       // that the store may stand at
    std::array<std::byte, 16> nonce{};
    std::vector<std::uint64_t> dropped;  // states that were put and are not to be kept
    TimePoint began{};
    int heals = 0;
    std::function<void(SessionError)> done;
  };
  using SentPtr = std::shared_ptr<Sent>;

  // As StorageSession::apply; `sent` receives what to send. If it has a write already, which is not
  // on its way yet, this write joins it: both or neither will stand.
  SessionError apply(const SessionStorage::Write& write, SentPtr* sent);
  // Nothing but a later end of the lease.
  SentPtr renewal();
  // The outcome of one: it stands; or it is not known to stand.
  void stands(const Sent& sent);
  void is_refused(const Sent& sent, bool may_stand);

  // Where the store was rolled back to before a write that is on its way: what to write first, so
  // that it stands where that one begins. Nothing: not from there; it is nowhere that this session
  // has been on its way to that write.
  struct Missing {
    std::int64_t first = 0;
    std::vector<std::int32_t> tokens;
  };
  std::optional<Missing> missing(const Sent& sent, const Digest& digest) const;

  const Row& row() const { return row_; }
  const SessionStorage::Claim& claim() const { return claim_; }
  bool is_writing() const { return !flights_.empty(); }

  // The claim is released with the states that were put and that no write names.
  void lets_go(Sent& sent);

  // Of the claim in the store, which differ once it was healed.
  std::array<std::byte, 16> nonce;
  std::uint64_t fence;
  int width;                    // of the tokens there, in bytes
  std::set<std::uint64_t> put;  // states that no row names yet
  std::shared_ptr<ClaimLease> lease;
  TimePoint granted{};  // when what last prolonged it was asked for
  bool is_healing = false;
  // A release was sent, and its outcome is unknown. The caller tries again, or the lease ends.
  bool is_given_up = false;
  std::vector<SentPtr> after_healing;

 private:
  struct Mark {
    Digest digest;
    std::int64_t position = 0;
  };

  SentPtr next();
  void mark();
  // The tokens before row_.position are in the store alone.
  void forget_tail();

  SessionStorage::Claim claim_;
  Row row_;
  std::uint64_t last_ = 0, known_ = 0;  // number of the last write, of the last that stands
  std::vector<Digest> maybe_;           // of writes whose outcome is unknown
  struct Flight {
    std::uint64_t number = 0;
    Row before;
    bool is_renewal = false;
  };
  std::deque<Flight> flights_;
  std::deque<Mark> marks_;  // the last 1,024 of the chain
  std::vector<std::int32_t> tail_;
  std::int64_t tail_first_ = 0;  // position of the first of them
};

}  // namespace lintel
