// SPDX-License-Identifier: Apache-2.0
// A session in memory, or a one-shot call: its record, its states, and the lease of who uses it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/adapter_table.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/session_options.h"

namespace lintel {

// Checkpoints: earlier states of a session, to go back to.

// At most `keep` states, which sessions with the same past share. If there would be more, the one
// whose loss costs least is dropped: going back d tokens means reading about d again. Thread-safe;
// states are copied and freed without its mutex.
class Checkpoints {
 public:
  struct Policy {
    std::int64_t every = 0;  // a state every so many tokens; 0: only on request
    std::size_t keep = 0;    // 0: none
  };
  using State = std::shared_ptr<const SequenceState>;

  explicit Checkpoints(const Policy& policy);

  const Policy& policy() const { return policy_; }
  // True if a state with so many tokens is to be kept.
  bool is_due(std::int64_t num_tokens) const EXCLUDES(mutex_) {
    return policy_.keep > 0 && policy_.every > 0 && num_tokens >= next_due();
  }
  // Keeps a copy, unless there is one with as many tokens. May throw std::bad_alloc.
  void take(const SequenceState& sequence) EXCLUDES(mutex_);

  // The latest with at most `position` tokens; null: none.
  State before(std::int64_t position) const EXCLUDES(mutex_);
  // The tokens of the earliest state that has at least `base`.
  std::optional<std::int64_t> oldest(std::int64_t base) const EXCLUDES(mutex_);
  // Keeps only the states with at least `base` and at most `position` tokens.
  void cut(std::int64_t base, std::int64_t position) EXCLUDES(mutex_);
  // Shares the states of another that have at most `position` tokens. REQUIRES: empty.
  void share(const Checkpoints& other, std::int64_t position) EXCLUDES(mutex_);

 private:
  std::int64_t next_due() const EXCLUDES(mutex_);
  // The index of the state to drop for a new one with num_tokens.
  std::size_t least_missed(std::int64_t num_tokens) const REQUIRES(mutex_);

  const Policy policy_;
  mutable Mutex mutex_;
  std::vector<State> states_ GUARDED_BY(mutex_);  // ascending by tokens
};

class LeaseKeeper;
class MemoryWaiter;
class SessionManager;
struct OwnersSessions;  // session_manager.h

// SessionRecord: the store's record of a session, or of a one-shot call.

// Guarded by the store's mutex, except `sequence`, `of_call` and `keeper`, which belong to the
// lease while there is one, `history` and `checkpoints`, which guard themselves, and constants.
//
// The history is the session; the sequence holds its first tokens: all of them except after a
// rewind, in a fork, or if a call ended while it read the others again.
struct SessionRecord {
  SessionRecord(SessionMemory::Reservation admitted, SessionOptions wanted)
      : reservation(std::move(admitted)),
        options(std::move(wanted)),
        checkpoints({options.checkpoint_every, options.checkpoint_keep}) {}

  const SessionMemory::Reservation reservation;  // first: until the state is zeroed and freed
  // The place of a one-shot call that waits for memory, or waited, instead of the reservation.
  std::optional<MemoryLine::Ticket> ticket;
  std::optional<SessionMemory::Reservation> of_call;  // additional memory of the call
  std::string id;                                     // empty: one-shot
  std::string model_name;
  // Constant for a session that others can see. `initial`: only where tokens before the history's
  // base are in it.
  SessionOptions options;
  // Declared before the sequences, which refer to them.
  std::shared_ptr<const Transformer> model;
  SharedAdapter adapter;  // null: none
  std::optional<SequenceState> sequence;
  std::unique_ptr<SessionHistory> history;  // null: one-shot
  Checkpoints checkpoints;
  std::int64_t max_tokens = 0;

  // The node in the store's order of last use, or while the session is leased the only one in
  // `aside`: it is moved without allocating memory.
  std::list<SessionRecord*> aside{this};
  std::list<SessionRecord*>::iterator node = aside.begin();
  // The node in its owner's order.
  OwnersSessions* of_owner = nullptr;  // while it is in the map
  std::list<SessionRecord*> owner_aside{this};
  std::list<SessionRecord*>::iterator owner_node = owner_aside.begin();

  std::shared_ptr<LeaseKeeper> keeper;  // receives the lease when it ends; null: the store

  int pins = 0;  // not evicted while there are any
  bool busy = false;
  bool stored = false;               // all of it is in a store, too, whenever it is idle
  bool discarded = false;            // by its lease
  bool unloaded = false;             // its model went while it was busy
  bool removed = false;              // a client deleted it while it was busy
  std::int64_t state_tokens = 0;     // of the sequence when the session was last idle
  std::int64_t tokens_at_lease = 0;  // the same when its lease began
  std::int64_t foreign_tokens = 0;   // the number of first tokens with options.numerics
  TimePoint last_used;
  std::chrono::system_clock::time_point created_at;
  std::chrono::system_clock::time_point last_used_at;
};

// NearestState: the state from which a session continues to a position.

// The state with the most tokens, but no more than a position, of those in memory: the session's
// own, a checkpoint, the one it began with, or an empty one. Refers to the record, which its lease
// or history keeps alive.
class NearestState {
 public:
  // own: the session's sequence if it may be read, else null. base: first token of the history.
  NearestState(const SessionRecord& record, const SequenceState* own, std::int64_t base,
               std::int64_t position);

  // True if there is a state from which the history leads to the position.
  explicit operator bool() const { return num_tokens_ >= 0; }
  std::int64_t num_tokens() const { return num_tokens_; }
  bool is_empty() const { return num_tokens_ == 0; }
  bool is(const SequenceState& sequence) const { return sequence_ == &sequence; }
  SequenceState copy() const;
  // Appends the state as SequenceState::save writes it. REQUIRES: not empty.
  void save(std::vector<std::byte>& to) const;
  std::size_t saved_bytes() const;  // appended by save()
  // The same with full pages in `pages`, as SequenceState::save_pages.
  void save_pages(std::vector<std::byte>& to, std::vector<PageRun>& pages) const;

 private:
  const SessionRecord& record_;
  std::int64_t num_tokens_ = -1;
  const SequenceState* sequence_ = nullptr;  // null: empty, or the initial state
  Checkpoints::State kept_;
};

// Sets the tail of a sequence whose tokens were cut, from the remaining ones.
void remember_tail(SequenceState& sequence, const SessionHistory& history);

// LeaseKeeper: keeps the lease of a session after its call has ended.

class SessionLease;

class LeaseKeeper {
 public:
  virtual ~LeaseKeeper() = default;
  // Takes the lease; the session is not released but stays busy for as long as the keeper has it.
  // Called by the thread that releases the last reference; must not block.
  virtual void keep(SessionLease lease) noexcept = 0;
  // Called between two steps of the call, by its worker: the session's sequence, which does not
  // change during this call; must not block.
  virtual void at_rest(const SequenceState& sequence) noexcept = 0;
};

// Tokens of a session that its sequence does not hold: the next ones, to be read like a prompt.
struct Replay {
  std::vector<std::int32_t> tokens;
  std::string tail;  // SequenceState::generated_tail after them
  // The tokens before them, as GenerationRequest::recent.
  std::vector<std::int32_t> recent;
};

// SessionLease: the right to use a sequence's state.

// The lease of a session, or of a one-shot call (no id). Move-only. When destroyed, releases the
// session, or the memory of a one-shot call. While it lives its session is never evicted, closed or
// leased again. Used by one thread at a time.
class SessionLease {
 public:
  SessionLease() = default;
  SessionLease(SessionLease&&) noexcept;
  SessionLease& operator=(SessionLease&&) noexcept;
  ~SessionLease();

  explicit operator bool() const { return record_ != nullptr; }
  const std::string& session_id() const;  // empty: one-shot
  const std::string& model() const;       // its name
  const std::string& owner() const;
  Durability durability() const;
  const Transformer& transformer() const;
  const SharedAdapter& adapter() const;  // computes the sequence; null: none
  // True if its adapter was unloaded and the time for its users is over: that of those that wait
  // for memory at once.
  bool adapter_ended() const;
  // True if it has its sequence; false for a one-shot call that waits for memory, or has just got
  // it: until admit() there is neither a state nor a page.
  bool is_admitted() const;
  // True while memory is not reserved for it.
  bool waits_for_memory() const;
  // Queues it for memory, in its caller's turn; the waiter outlives the lease. REQUIRES: once,
  // before admit(). Throws std::bad_alloc.
  void wait_for_memory(const std::string& caller, MemoryWaiter& waiter);
  // The longest that it may wait.
  Duration most_wait() const;
  // Makes the sequence. REQUIRES: it neither is_admitted() nor waits_for_memory(). Throws
  // std::bad_alloc.
  void admit();
  // REQUIRES: is_admitted().
  SequenceState& sequence();
  // The history that the sequence's tokens are appended to; null: one-shot.
  SessionHistory* history() const;
  // The tokens of the history that the sequence lacks; mostly none. recent_wanted: number of
  // earlier tokens that the call needs, as far as there are any (those of a session's window are
  // always included).
  Replay replay(std::int64_t recent_wanted = 0) const;
  // Number of tokens of the session, including those that its sequence lacks.
  std::int64_t num_tokens() const;
  // Tokens after which the session's state is rebuilt; 0: never.
  std::int64_t window() const;
  // True if there are tokens, all of them computed with other numerics than this machine's.
  bool is_foreign() const;
  // Keeps a copy of the sequence if one is due, and passes the sequence to the keeper. Without
  // memory for a copy, none is kept. Called between two steps.
  void keep_checkpoint() noexcept;
  // Most tokens the sequence may hold: the model's limit, or a session's own if lower. 0:
  // unbounded.
  std::int64_t max_tokens() const;
  // Counts the bytes that a call holds in addition to the session, until the lease ends. Never
  // refused: a session can always continue. REQUIRES: called once, on the lease of a session.
  void hold(std::size_t call_bytes);
  // True if sessions of its owner may soon have to leave memory for others.
  bool memory_is_short() const;
  // Marks the session as unable to continue (non-finite state): it is removed when the lease ends.
  void discard();
  bool discarded() const;
  // Sets the keeper that receives the lease at its end. Null: the session is released then.
  void keep_with(std::shared_ptr<LeaseKeeper> keeper);
  // Completes the history with facts about the ended call that it cannot know, before it is read
  // for others. Otherwise done when the session is released.
  void end_call() noexcept;

 private:
  friend class SessionManager;
  void give_back() noexcept;
  SessionLease(SessionManager* store, std::shared_ptr<SessionRecord> record);
  SessionManager* manager_ = nullptr;
  std::shared_ptr<SessionRecord> record_;
};

// Keeps a session in memory while it is read: it is not evicted. It may still be leased, deleted,
// or closed with its model. Move-only; the manager outlives it.
class SessionPin {
 public:
  SessionPin() = default;
  SessionPin(SessionPin&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)), record_(std::move(other.record_)) {}
  SessionPin& operator=(SessionPin&& other) noexcept;
  ~SessionPin() { release(); }

  explicit operator bool() const { return record_ != nullptr; }
  // True if the session is still in memory. REQUIRES: not empty.
  bool is_current() const;

 private:
  friend class SessionManager;
  SessionPin(SessionManager* manager, std::shared_ptr<SessionRecord> record)
      : manager_(manager), record_(std::move(record)) {}
  void release() noexcept;

  SessionManager* manager_ = nullptr;
  std::shared_ptr<SessionRecord> record_;
};

}  // namespace lintel
