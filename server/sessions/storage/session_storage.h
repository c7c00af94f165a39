// SPDX-License-Identifier: Apache-2.0
// SessionStorage: sessions beyond this process's memory.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/sessions/digest.h"
#include "server/sessions/session_error.h"
#include "server/sessions/session_options.h"

namespace lintel {

// SessionError: what became of something asked of a storage.

// How long a claim is good for without word of the store. Thread-safe.
class ClaimLease {
 public:
  // Moves it on; never back.
  void prolong(TimePoint until) {
    auto now = until_.load();
    while (now < until && !until_.compare_exchange_weak(now, until)) {
    }
  }
  TimePoint until() const { return until_.load(std::memory_order_relaxed); }

 private:
  std::atomic<TimePoint> until_{TimePoint::min()};
};

// The history of a session is the truth, its states are a cache of it: what is said to be written
// of the former is there after a crash, of the latter it may be.
//
// Thread-safe. commit() and renew() queue; the others may wait for a disk or a network: never from
// a worker or a gRPC thread. Only a running call holds a session (a claim); an idle one has no
// holder.
class SessionStorage {
 public:
  using SessionId = std::string;    // 1 to 128 bytes, never used again after kRemove
  using Owner = std::string;        // of an identity
  using Fingerprint = std::string;  // hexadecimal; of a model with what else its states depend on

  // The right to write a session, from open() to kEnd, kRelease or kRemove.
  struct Claim {
    std::array<std::byte, 16> nonce{};
    std::uint64_t fence = 0;  // grows from claim to claim
    bool operator==(const Claim&) const = default;
  };

  // A state that was put, or pages that states of the session share (paged_state.h). The checksum
  // is that of the very bytes: a slot that holds anything else by now, be it of the same session at
  // the same position, is refused.
  struct StateRef {
    std::int64_t position = 0;  // tokens of the state; of pages: where they end
    std::int64_t first = 0;     // pages hold the tokens from here on; a state needs those before it
    bool is_pages = false;
    std::uint64_t where = 0;
    std::size_t bytes = 0;
    Digest checksum;
    bool operator==(const StateRef&) const = default;
  };

  // All but tokens and states.
  struct Row {
    SessionId id;
    Owner owner;
    std::string model;
    Fingerprint model_print, numerics;
    Durability durability = Durability::kNone;
    std::int64_t max_tokens = 0, base = 0, position = 0;  // tokens [base, position)
    Digest digest;                                        // of the history up to `position`
    std::string call;                     // the call in progress, as kBegin wrote it; empty: none
    std::string last_calls, marks, tail;  // serialised by their writer; empty: none
    std::vector<StateRef> states;         // ascending, pages first; none above `position`
    std::chrono::system_clock::time_point created, used, expires;  // microseconds are kept
    bool operator==(const Row&) const = default;
  };

  struct Opened {
    SessionError outcome = SessionError::kNone;
    Row row{};
    Claim claim{};
    std::string holder{};  // kHeld, and of find() where another process holds it: who it is
    Duration held_for{};   // and for how long at most; 0: unknown
    // By the steady clock: until when the claim is good. Null: until it is released.
    std::shared_ptr<const ClaimLease> lease{};
  };

  // storage_records.h makes the bodies.
  struct Write {
    enum class Kind : std::uint8_t {
      kCreate,   // body: NewSession. Needs no claim, gives none
      kBegin,    // RowChange with the call; the history begins a record at `position`
      kValues,   // tokens that end at `position`
      kEnd,      // RowChange; the call is over, the claim released
      kRewind,   // RowChange; back to `position`: tokens and states above it and the call are gone
      kState,    // RowChange with the states that the session has from now on
      kRelease,  // RowChange; the claim is released, an open call stays open
      kRemove,   // no body
    } kind{};
    SessionId id;
    Claim claim{};
    // Of the history before and after. A write whose `after` stands already is done (its answer was
    // lost); one whose `before` does not stand is kRolledBack. Equal: of what is not history.
    Digest before, after;
    std::int64_t position = 0;
    std::span<const std::byte> body{};  // lives until `done` was called
  };
  // With an outcome for each write. By a thread of the storage, or from within the call that gave
  // it; must not block, nor ask the storage for anything but commit().
  using Done = std::function<void(std::span<const SessionError>)>;

  struct Health {
    enum class State { kOk, kFull, kAway, kBroken } state = State::kOk;
    std::string why;                // in words, unless kOk
    std::uint64_t commits = 0;      // transactions that are durable
    std::uint64_t writes = 0;       // writes in them
    std::size_t queued_bytes = 0;   // waiting to be committed
    std::size_t journal_bytes = 0;  // not yet folded into rows
    std::size_t sessions = 0;       // that are there
    std::size_t quarantined = 0;    // sessions that damage was found in when the store was opened
    std::size_t interrupted = 0;    // calls in progress that were found then
    std::uint64_t states_lost = 0;  // refused when read: torn, foreign, missing
    std::uint64_t states_dropped = 0;  // to make room on a full disk
    // Of a store that is shared with others:
    bool is_shared = false;
    std::uint64_t claims = 0, claims_held = 0;  // granted; refused, for another had the session
    std::uint64_t fenced = 0;       // writes refused, for another had taken the session over
    std::uint64_t rolled_back = 0;  // sessions that the store had lost the last tokens of
    std::uint64_t healed = 0;       // of those, written again by the call that had them
    std::uint64_t reconnects = 0, redirects = 0;
    std::uint64_t short_waits = 0;  // commits that too few replicas had in time
    bool clocks_differ = false;     // too much to remove what has expired
  };

  virtual ~SessionStorage() = default;

  // Whether other processes may write its sessions: what was of one in memory may be old.
  virtual bool is_shared() const { return false; }
  // Claims it. `have`: digest of a copy in memory; where it is current, row.states is left empty.
  // kNotFound also where another owns it; kHeld; kCorrupt: quarantined, with what is known of it.
  virtual Opened open(const SessionId& id, const Owner& owner, const Digest* have) = 0;
  // As open(), for a call that is new to the session: where its history stands at `at`, and its row
  // names no call `call` (empty: it has no name). Else, and where claims cost nothing, as find():
  // without a claim, whose lease is null then. Spares a call on a shared store one of two ways
  // there.
  virtual Opened open_at(const SessionId& id, const Owner& owner, const Digest& /*at*/,
                         const std::string& /*call*/) {
    return find(id, owner);
  }
  // Its row, held or not; claims nothing.
  virtual Opened find(const SessionId& id, const Owner& owner) = 0;
  // Each session's writes in order, each all or nothing. Done once all are durable or refused.
  virtual void commit(std::vector<Write> writes, Done done) = 0;
  // Tokens [first, first + tokens.size()); kNotFound where it has not all of them.
  virtual SessionError read_tokens(const SessionId& id, std::int64_t first,
                                   std::span<std::int32_t> tokens) = 0;
  // Fills in `where`, `bytes` and `checksum`; the rest of the reference is the caller's. Kept once
  // a kState or kCreate names it; dropped when the claim on `id` is released and none has. kFull
  // and kUnavailable cost time only: the session's tokens are there.
  virtual SessionError put_state(const SessionId& id, std::span<const std::byte> state,
                                 StateRef* ref) = 0;
  // REQUIRES: state.size() == ref.bytes. kCorrupt: what is there is not that state.
  virtual SessionError read_state(const StateRef& ref, std::span<std::byte> state) = 0;
  // Whether a state that a row names may still be there; false: it was dropped to make room.
  virtual bool holds_state(const StateRef& /*ref*/) { return true; }
  // Those of a model, or of all (empty), by id, beginning after `after`; of one owner, or of all.
  virtual std::vector<Row> list(const std::string& model, const SessionId& after, std::size_t limit,
                                const std::optional<Owner>& owner) = 0;
  // Those whose ids begin with `prefix`, beginning after `after`, which does, too.
  virtual std::vector<Row> list_prefix(const std::string& prefix, const SessionId& after,
                                       std::size_t limit) {
    std::vector<Row> rows = list(/*model=*/"", after, limit, std::nullopt);
    std::erase_if(rows, [&](const Row& row) { return !row.id.starts_with(prefix); });
    return rows;
  }
  // Leases; nothing where no other process can write.
  virtual void renew(std::span<const SessionId> busy, Done done) = 0;
  // Removes expired sessions that are not held, at most so many. Returns how many.
  virtual std::size_t sweep(std::size_t most) = 0;
  virtual Health health() const = 0;
};

}  // namespace lintel
