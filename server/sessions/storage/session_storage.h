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

// The time until which a claim is valid unless the store prolongs it. Thread-safe.
class ClaimLease {
 public:
  // Advances the time; never moves it back.
  void prolong(TimePoint until) {
    auto now = until_.load();
    while (now < until && !until_.compare_exchange_weak(now, until)) {
    }
  }
  TimePoint until() const { return until_.load(std::memory_order_relaxed); }

 private:
  std::atomic<TimePoint> until_{TimePoint::min()};
};

// The history of a session is authoritative, its states are a cache of it: after a crash, a history
// whose write was acknowledged is there, and a state may be.
//
// Thread-safe. commit() and renew() queue; the others may wait for a disk or a network: never from
// a worker or a gRPC thread. Only a running call holds a session (a claim); an idle one has no
// holder.
class SessionStorage {
 public:
  using SessionId = std::string;    // 1 to 128 bytes, never used again after kRemove
  using Owner = std::string;        // of an identity
  using Fingerprint = std::string;  // hexadecimal; of a model and the other inputs of its states

  // The right to write a session, from open() to kEnd, kRelease or kRemove.
  struct Claim {
    std::array<std::byte, 16> nonce{};
    std::uint64_t fence = 0;  // grows from claim to claim
    bool operator==(const Claim&) const = default;
  };

  // A state that was put, or pages that states of the session share (paged_state.h). The checksum
  // is that of the stored bytes: a slot that has other contents by now is refused, even if they are
  // of the same session at the same position.
  struct StateRef {
    std::int64_t position = 0;  // tokens of the state; for pages: their end
    std::int64_t first = 0;     // start of pages; a state needs pages of tokens before it
    bool is_pages = false;
    std::uint64_t where = 0;
    std::size_t bytes = 0;
    Digest checksum;
    bool operator==(const StateRef&) const = default;
  };

  // A stored session except its tokens and the contents of states.
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
    std::string holder{};  // the holder: for kHeld, and find() of a session held elsewhere
    Duration held_for{};   // its longest remaining time; 0: unknown
    // The end of the claim by the steady clock. Null: valid until it is released.
    std::shared_ptr<const ClaimLease> lease{};
  };

  // A write to a session. storage_records.h makes the bodies.
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
    // Digests of the history before and after. A write whose `after` is stored already succeeds
    // (its answer was lost); one whose `before` is not the stored one is kRolledBack. Equal: the
    // write does not change the history.
    Digest before, after;
    std::int64_t position = 0;
    std::span<const std::byte> body{};  // lives until `done` was called
  };
  // Receives an outcome for each write. Called by a thread of the storage, or within the call that
  // it was passed to; must not block, nor call any function of the storage but commit().
  using Done = std::function<void(std::span<const SessionError>)>;

  struct Health {
    enum class State { kOk, kFull, kAway, kBroken } state = State::kOk;
    std::string why;                // in words, unless kOk
    std::uint64_t commits = 0;      // transactions that are durable
    std::uint64_t writes = 0;       // writes in them
    std::size_t queued_bytes = 0;   // waiting to be committed
    std::size_t journal_bytes = 0;  // not yet folded into rows
    std::size_t sessions = 0;       // in the storage
    std::size_t quarantined = 0;    // damaged sessions that were found while the store was opened
    std::size_t interrupted = 0;    // calls in progress that were found then
    std::uint64_t states_lost = 0;  // refused when read: torn, foreign, missing
    std::uint64_t states_dropped = 0;  // to make room on a full disk
    // For a store that is shared with others:
    bool is_shared = false;
    std::uint64_t claims = 0, claims_held = 0;  // granted; refused as the session was held
    std::uint64_t fenced = 0;       // writes refused because another took the session over
    std::uint64_t rolled_back = 0;  // sessions whose last tokens the store had lost
    std::uint64_t healed = 0;       // of those, restored by the call that had them
    std::uint64_t reconnects = 0, redirects = 0;
    std::uint64_t short_waits = 0;  // commits that reached too few replicas in time
    bool clocks_differ = false;     // too much to remove expired sessions
  };

  virtual ~SessionStorage() = default;

  // True if other processes may write its sessions, so that a copy in memory may be stale.
  virtual bool is_shared() const { return false; }
  // Claims a session. `have`: digest of a copy in memory; if it is current, row.states is left
  // empty. kNotFound also if another owner has it; kHeld; kDamaged: quarantined, with the known
  // fields of its row.
  virtual Opened open(const SessionId& id, const Owner& owner, const Digest* have) = 0;
  // As open(), for a new call: claims the session only if its history is at `at` and its row names
  // no call `call` (empty: it has no name). Otherwise, and if claims cost nothing, as find():
  // without a claim; the lease is null then. Saves a call on a shared store one of two round trips.
  virtual Opened open_at(const SessionId& id, const Owner& owner, const Digest& /*at*/,
                         const std::string& /*call*/) {
    return find(id, owner);
  }
  // Reads a session's row, held or not; claims nothing.
  virtual Opened find(const SessionId& id, const Owner& owner) = 0;
  // Applies each session's writes in order, each completely or not at all. `done` is called once
  // all are durable or refused.
  virtual void commit(std::vector<Write> writes, Done done) = 0;
  // Reads tokens [first, first + tokens.size()); kNotFound if some of them are missing.
  virtual SessionError read_tokens(const SessionId& id, std::int64_t first,
                                   std::span<std::int32_t> tokens) = 0;
  // Stores a state and sets `where`, `bytes` and `checksum` of the reference; the rest is the
  // caller's. Kept once a kState or kCreate names it; dropped if the claim on `id` is released
  // before. kStoreFull and kStoreAway cost time only: the session's tokens are stored.
  virtual SessionError put_state(const SessionId& id, std::span<const std::byte> state,
                                 StateRef* ref) = 0;
  // Reads a state. REQUIRES: state.size() == ref.bytes. kDamaged: the stored bytes are not that
  // state.
  virtual SessionError read_state(const StateRef& ref, std::span<std::byte> state) = 0;
  // True if a state named by a row may still be stored; false: it was dropped to make room.
  virtual bool holds_state(const StateRef& /*ref*/) { return true; }
  // Sessions of a model, or of all (empty), by id, beginning after `after`; of one owner, or of
  // all.
  virtual std::vector<Row> list(const std::string& model, const SessionId& after, std::size_t limit,
                                const std::optional<Owner>& owner) = 0;
  // Sessions whose ids begin with `prefix`, after `after`, which has the prefix, too.
  virtual std::vector<Row> list_prefix(const std::string& prefix, const SessionId& after,
                                       std::size_t limit) {
    std::vector<Row> rows = list(/*model=*/"", after, limit, std::nullopt);
    std::erase_if(rows, [&](const Row& row) { return !row.id.starts_with(prefix); });
    return rows;
  }
  // Renews leases; does nothing if no other process can write.
  virtual void renew(std::span<const SessionId> busy, Done done) = 0;
  // Removes at most `most` expired sessions that are not held. Returns how many.
  virtual std::size_t sweep(std::size_t most) = 0;
  virtual Health health() const = 0;
};

}  // namespace lintel
