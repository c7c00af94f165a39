// SPDX-License-Identifier: Apache-2.0
// PersistentRequest: a call on a session that outlives the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/core/mutex.h"
#include "server/engine/request.h"
#include "server/engine/scheduler.h"
#include "server/engine/token_sink.h"
#include "server/models/model_registry.h"
#include "server/sessions/persistence/call_records.h"
#include "server/sessions/persistence/call_writer.h"
#include "server/sessions/persistence/paged_state.h"
#include "server/sessions/session.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

class WriteBatch;

// The terms of a call, except for its tokens.
struct IdempotencyKey {
  std::string id;                     // empty: it cannot be repeated
  Digest request;                     // of all inputs of its tokens except the seed
  std::optional<std::uint64_t> seed;  // nothing: a repeat has the seed of the call
  // For a repeat: tokens before it are not delivered again.
  std::int64_t from_position = 0;
  std::optional<std::int64_t> expected_position;  // of the session, as its client believes
  bool log2_probs = false;
  bool echo_prompt = false;

  // True if the probabilities of the prompt's tokens are reported, so that all are read.
  bool scores_prompt() const { return echo_prompt && log2_probs; }
};

// Stands between the scheduler and the sink of a call. It holds tokens back until they may be seen:
// in an INPUT call until its beginning is durable, in a TOKEN call until the tokens are. The end is
// delivered when it is durable, and until then the call keeps the session's lease.
//
// States (docs/sessions.md has the diagram):
//
//   kOpening    begin() claims the session in the storage, or refuses the call
//   kRunning    the scheduler has the call; its tokens are written as they come
//   kDraining   the run is over, or never began; what is left is written
//   kCommitted  all tokens are durable, and so is the end, unless another server continues the call
//   kReleased   the claim was released, and nothing of the call's end is in the storage
//
// The storage is authoritative. If the storage fails a call, or a repeat ends before it reaches the
// stored tokens, the copy in memory is dropped.
//
// Thread-safe; the thread that has something to deliver calls the sink, one at a time. Lifetime:
// the scheduler, the lease and the writer each hold it, and all of them release it at its end.
class PersistentRequest final : public TokenSink,
                                public LeaseKeeper,
                                public std::enable_shared_from_this<PersistentRequest> {
 public:
  // Tokens that wait to be seen; with more the request pauses.
  static constexpr std::size_t kMostHeld = 4096;

  // stored: the session's row, as the storage has it, with the claim on it, or without; start:
  // tokens before the call. The writer outlives it. draws: it may come to tokens that the storage
  // does not have; else all of it is run again.
  PersistentRequest(CallWriter& writer, SharedModel model, SessionStorage::Opened stored,
                    IdempotencyKey terms, std::int64_t start, bool draws);
  ~PersistentRequest() override;

  // Bytes that a call with this request holds for states that are stored during it.
  std::size_t checkpoint_bytes(const GenerationRequest& request) const EXCLUDES(mutex_);
  // Waits only for the claim, if it has none: the writer has the call on return. `lease`: the
  // session at the position where the call begins or resumes; the call is its keeper.
  // prompt_tokens: of the whole call, as the sequence takes them, including a start token. Refused:
  // nothing is held.
  SessionRefusal begin(const SessionLease& lease, const GenerationRequest& request,
                       std::int64_t prompt_tokens) EXCLUDES(mutex_);
  // Submits the request as Scheduler::submit, once, after begin(); `sink` outlives the call.
  // request: the whole call's; only the rest of a resumed call runs.
  Scheduler::SubmitError submit(GenerationRequest request, SessionLease lease,
                                std::shared_ptr<TokenSink> sink, const RequestHandle& handle)
      EXCLUDES(mutex_);

  bool on_token(const TokenEvent& event) override EXCLUDES(mutex_);
  void on_sample_finish(const SampleResult& result) override EXCLUDES(mutex_);
  void on_step_end() override EXCLUDES(mutex_);
  void on_finish(RequestOutcome outcome) override EXCLUDES(mutex_);
  void keep(SessionLease lease) noexcept override EXCLUDES(mutex_);
  void at_rest(const SequenceState& sequence) noexcept override EXCLUDES(mutex_);

  // Prepares for the end of the server: a call that can be repeated ends after its step, kMoved,
  // once its tokens are written and its claim is released.
  void hand_over() EXCLUDES(mutex_);

  // Called by the writer: adds the writes that are due, and receives their outcomes. Unless
  // all_tokens, only the first tokens of a TOKEN call are due; later ones gather.
  void collect(WriteBatch& batch, bool all_tokens) EXCLUDES(mutex_);
  // Undoes collect() for lack of memory: the writes are collected again.
  void not_collected() EXCLUDES(mutex_);
  void written(std::span<const SessionError> outcomes) EXCLUDES(mutex_);
  // True if the writer has to check it again soon without being woken.
  bool is_urgent() const EXCLUDES(mutex_);
  Durability durability() const { return level_; }

 private:
  enum class State : std::uint8_t { kOpening, kRunning, kDraining, kCommitted, kReleased };
  enum class Writing { kNothing, kBegin, kTokens, kEnd, kRelease };

  // Moves along an arrow of the diagram: to a later state, and to one of the last two only from
  // kDraining.
  void move_to(State next) REQUIRES(mutex_);
  bool is_over() const REQUIRES(mutex_) { return state_ >= State::kCommitted; }
  // True if only the last write is left: its run is over, and the session has come back.
  bool is_ending() const REQUIRES(mutex_) { return state_ == State::kDraining && lease_; }

  // True if the token at a position may be seen.
  bool may_see(std::int64_t position) const REQUIRES(mutex_);
  // The right to call the sink, until deliver() has nothing more for it.
  bool begin_delivery() EXCLUDES(mutex_);
  // The outcome that its client receives.
  RequestOutcome client_outcome() const REQUIRES(mutex_);
  void deliver() EXCLUDES(mutex_);
  bool deliver(const TokenEvent& event);
  void deliver_end();

  // True if a CALL call is written while it runs, because the history in memory will not have all
  // of it at its end.
  bool is_long() REQUIRES(mutex_);
  SessionStorage::Write next_write(SessionStorage::Write::Kind kind) const REQUIRES(mutex_);
  void collect_begin(WriteBatch& batch) REQUIRES(mutex_);
  void collect_tokens(WriteBatch& batch) REQUIRES(mutex_);
  void add_tokens(const SessionHistory::Extent& extent, WriteBatch& batch) REQUIRES(mutex_);
  void collect_end(WriteBatch& batch) EXCLUDES(mutex_);
  // True if the copy in memory extends the stored history.
  bool extends_storage(const SessionHistory::Extent& extent) REQUIRES(mutex_);
  // Puts the state after the last token, unless that does not pay or there is no room.
  void put_state(SessionLease& lease) EXCLUDES(mutex_);
  // Adds a state from during the call, with all tokens up to now.
  void collect_checkpoint(WriteBatch& batch) EXCLUDES(mutex_);
  // Puts checkpoint_ and zeroes it; empty if there was no room.
  StoredStates put_checkpoint(const SessionStorage::SessionId& id) noexcept;
  // The states of the row whose pages are the sequence's own.
  StoredStates states_with_own_pages() const REQUIRES(mutex_);
  // The position from which on a state is due again.
  std::int64_t next_checkpoint() const REQUIRES(mutex_);
  // Removes the part of the request before the position at which it resumes.
  void skip_past(GenerationRequest& request) EXCLUDES(mutex_);
  // True if a repeated run was cut off before it reached the tokens its client has seen, or passed
  // the stored ones: the call stays open, for another would take positions that a client has seen.
  bool has_shown_more() const REQUIRES(mutex_);
  // The row's last calls once this one has ended at `end`.
  std::vector<LastCall> last_calls(std::int64_t end) const REQUIRES(mutex_);
  // The states of the row of which one has to exist before tokens are released.
  StoredStates states_of_tokens() const REQUIRES(mutex_);
  // has_state: one of those exists.
  void add_end(WriteBatch& batch, bool has_state) REQUIRES(mutex_);
  void fail(RequestOutcome why) REQUIRES(mutex_);
  // Fails the call, delivering nothing more: another process may have taken the session over by
  // now.
  void fail_past_lease() REQUIRES(mutex_);
  // True if a write is tried again after a refusal of the storage.
  bool is_patient(SessionError outcome, Writing was) REQUIRES(mutex_);

  CallWriter& writer_;
  const IdempotencyKey terms_;
  const Durability level_;
  const bool draws_;
  // Constant after begin().
  SessionHistory* history_ = nullptr;  // of the lease
  StoredCall call_;
  std::int64_t first_drawn_ = 0;  // position of the first token after the prompt
  std::int64_t run_start_ = 0;    // of the first token of this run
  std::int64_t drawn_end_ = 0;    // after the last token of earlier runs
  SessionStorage::Claim claim_;
  std::shared_ptr<const ClaimLease> claim_lease_;  // null: valid until it is released
  bool has_claim_ = false;                         // begin() succeeded
  bool numerics_changed_ = false;  // the tokens before it have another machine's bits
  // Constant from kRunning on.
  std::shared_ptr<TokenSink> sink_;
  RequestHandle handle_;

  mutable Mutex mutex_;
  State state_ GUARDED_BY(mutex_) = State::kOpening;
  SharedModel model_ GUARDED_BY(mutex_);        // until the call is over
  SessionStorage::Row row_ GUARDED_BY(mutex_);  // as the storage has it
  bool was_open_ GUARDED_BY(mutex_);  // in the storage: a run of it began and has not ended
  bool is_long_ GUARDED_BY(mutex_) = false;
  bool is_begun_ GUARDED_BY(mutex_) = false;  // its beginning is durable or need not be
  bool is_checked_ GUARDED_BY(mutex_) =
      false;  // a repeated run has reached the tokens of the storage
  Writing writing_ GUARDED_BY(mutex_) = Writing::kNothing;
  std::int64_t writing_to_ GUARDED_BY(mutex_) = 0;  // position and digest after it
  Digest writing_digest_ GUARDED_BY(mutex_);
  std::optional<StoredStates> writing_states_ GUARDED_BY(mutex_);
  TimePoint last_write_ GUARDED_BY(mutex_);
  std::optional<TimePoint> failing_since_ GUARDED_BY(mutex_);
  std::optional<RequestOutcome> failure_ GUARDED_BY(mutex_);  // caused by the storage

  SessionLease lease_ GUARDED_BY(mutex_);  // once the request is over
  bool is_handed_over_ GUARDED_BY(mutex_) = false;
  bool state_was_tried_ GUARDED_BY(mutex_) = false;
  StoredStates end_state_ GUARDED_BY(mutex_);  // put, to be named by the end
  std::optional<SampleResult> result_ GUARDED_BY(mutex_);
  std::optional<RequestOutcome> outcome_ GUARDED_BY(mutex_);
  std::int64_t shown_end_ GUARDED_BY(mutex_) = 0;  // after the last token that came
  std::int64_t skipped_given_ GUARDED_BY(mutex_) =
      0;  // number of given tokens that this run does not reach

  // A state to be stored: the worker's until checkpoint_at_ is its number of tokens, then the
  // collecting thread's, which zeroes checkpoint_at_.
  PagedState checkpoint_;
  std::int64_t checkpoint_at_ GUARDED_BY(mutex_) = 0;
  std::atomic<std::int64_t> next_checkpoint_;  // due at so many tokens of the sequence

  std::vector<HeldToken> held_ GUARDED_BY(mutex_);
  bool delivering_ GUARDED_BY(mutex_) = false;
  bool is_paused_ GUARDED_BY(mutex_) = false;  // because of the held tokens
};

}  // namespace lintel
