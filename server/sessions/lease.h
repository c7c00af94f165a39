// SPDX-License-Identifier: Apache-2.0
// SessionLease: the right to use a sequence's state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/transformer.h"
#include "server/sessions/adapter_table.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_options.h"

namespace lintel {

// LeaseKeeper: keeps the lease of a session after its call has ended.

class SequenceState;
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

struct SessionRecord;
class LeaseKeeper;
class SessionManager;

// Tokens of a session that its sequence does not hold: the next ones, to be read like a prompt.
struct Replay {
  std::vector<std::int32_t> tokens;
  std::string tail;  // SequenceState::generated_tail after them
  // The tokens before them, as GenerationRequest::recent.
  std::vector<std::int32_t> recent;
};

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
  // True if its adapter was unloaded and the time for its users is over.
  bool adapter_ended() const;
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
