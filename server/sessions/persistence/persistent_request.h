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
#include "server/sessions/lease.h"
#include "server/sessions/persistence/call_records.h"
#include "server/sessions/persistence/call_writer.h"
#include "server/sessions/persistence/paged_state.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

class WriteBatch;

// The terms of a call, except for its tokens.
struct IdempotencyKey {
  std::string id;                     // empty: it cannot be repeated
  Digest request;                     // of all that makes its tokens but the seed
  std::optional<std::uint64_t> seed;  // nothing: a repeat has the seed that the call had
  // Of a repeat: tokens before it are not delivered again.
  std::int64_t from_position = 0;
  std::optional<std::int64_t> expected_position;  // where its client believes the session stands
  bool log2_probs = false;
  bool echo_prompt = false;

  // Whether the probabilities of the prompt's tokens are reported, so that all are read.
  bool scores_prompt() const { return echo_prompt && log2_probs; }
};

// Stands between the scheduler and the sink of a call. It holds tokens back until they may be seen:
// of an INPUT call until its beginning is durable, of a TOKEN call until they are. The end is
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
// The storage is authoritative. Where a call fails by the storage, or a repeat ends before it
// reaches what the storage has, the copy in memory is dropped.
//
// Thread-safe; the thread that has something to deliver calls the sink, one at a time. Lifetime:
// the scheduler, the lease and the writer each hold it, and all of them let go at its end.
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

  // What a call with such a request holds for states that are stored on its way.
  std::size_t checkpoint_bytes(const GenerationRequest& request) const EXCLUDES(mutex_);
  // Waits, for the claim alone, if it has none: the writer has the call when it returns. `lease`:
  // the session, where the call begins or resumes, whose keeper the call is. prompt_tokens: of the
  // whole call, as the sequence takes them, a start token included. Refused: nothing is held.
  SessionRefusal begin(const SessionLease& lease, const GenerationRequest& request,
                       std::int64_t prompt_tokens) EXCLUDES(mutex_);
  // Once, after begin(). As the scheduler's; `sink` outlives the call. request: the whole call's;
  // of a resumed call only the rest runs.
  Scheduler::SubmitError submit(GenerationRequest request, SessionLease lease,
                                std::shared_ptr<TokenSink> sink, const RequestHandle& handle)
      EXCLUDES(mutex_);

  bool on_token(const TokenEvent& event) override EXCLUDES(mutex_);
  void on_sample_finish(const SampleResult& result) override EXCLUDES(mutex_);
  void on_step_end() override EXCLUDES(mutex_);
  void on_finish(RequestOutcome outcome) override EXCLUDES(mutex_);
  void keep(SessionLease lease) noexcept override EXCLUDES(mutex_);
  void at_rest(const SequenceState& sequence) noexcept override EXCLUDES(mutex_);

  // The server is about to end: a call that can be repeated ends after its step, kMoved, once its
  // tokens are written and its claim is released.
  void hand_over() EXCLUDES(mutex_);

  // Of the writer: what is to be written now, and what became of it. Unless all_tokens, a TOKEN
  // call's tokens but its first ones gather on.
  void collect(WriteBatch& batch, bool all_tokens) EXCLUDES(mutex_);
  // There was no memory for what was collected: it is to be collected again.
  void not_collected() EXCLUDES(mutex_);
  void written(std::span<const SessionError> outcomes) EXCLUDES(mutex_);
  // Whether the writer has to look at it again soon without being woken.
  bool is_urgent() const EXCLUDES(mutex_);
  Durability durability() const { return level_; }

 private:
  enum class State : std::uint8_t { kOpening, kRunning, kDraining, kCommitted, kReleased };
  enum class Writing { kNothing, kBegin, kTokens, kEnd, kRelease };

  // Along an arrow of the diagram: a later state, and to one of the last two from kDraining alone.
  void move_to(State next) REQUIRES(mutex_);
  bool is_over() const REQUIRES(mutex_) { return state_ >= State::kCommitted; }
  // Whether nothing but the last write is left: its run is over, and the session has come back.
  bool is_ending() const REQUIRES(mutex_) { return state_ == State::kDraining && lease_; }

  // Whether the token at a position may be seen.
  bool may_see(std::int64_t position) const REQUIRES(mutex_);
  // The right to call the sink, until deliver() has nothing more for it.
  bool begin_delivery() EXCLUDES(mutex_);
  // The outcome that its client receives.
  RequestOutcome client_outcome() const REQUIRES(mutex_);
  void deliver() EXCLUDES(mutex_);
  bool deliver(const TokenEvent& event);
  void deliver_end();

  // Whether a CALL call is written down on its way, for the history in memory will not have all of
  // it at its end.
  bool is_long() REQUIRES(mutex_);
  SessionStorage::Write next_write(SessionStorage::Write::Kind kind) const REQUIRES(mutex_);
  void collect_begin(WriteBatch& batch) REQUIRES(mutex_);
  void collect_tokens(WriteBatch& batch) REQUIRES(mutex_);
  void add_tokens(const SessionHistory::Extent& extent, WriteBatch& batch) REQUIRES(mutex_);
  void collect_end(WriteBatch& batch) EXCLUDES(mutex_);
  // Whether the copy in memory extends what the storage has.
  bool extends_storage(const SessionHistory::Extent& extent) REQUIRES(mutex_);
  // The state after the last token, in a slot; nothing where it is not worth it, or finds no room.
  void put_state(SessionLease& lease) EXCLUDES(mutex_);
  // A state of the call's way, with all tokens up to now.
  void collect_checkpoint(WriteBatch& batch) EXCLUDES(mutex_);
  // Puts what lies in checkpoint_, and zeroes that; empty where there was no room.
  StoredStates put_checkpoint(const SessionStorage::SessionId& id) noexcept;
  // Those of the row whose pages are the sequence's own.
  StoredStates states_with_own_pages() const REQUIRES(mutex_);
  // Position from which on a state is due once more.
  std::int64_t next_checkpoint() const REQUIRES(mutex_);
  // Takes out of the request what lies before the position at which it resumes.
  void skip_past(GenerationRequest& request) EXCLUDES(mutex_);
  // Whether a repeated run was cut off before it reached what its client has seen, or before it
  // passed what the storage has: the call stays open, for another would take positions that a
  // client has seen.
  bool has_shown_more() const REQUIRES(mutex_);
  // What the row has of calls once this one has ended so.
  std::vector<LastCall> last_calls(std::int64_t end) const REQUIRES(mutex_);
  // The states of the row of which one has to be there before tokens are let go of.
  StoredStates states_of_tokens() const REQUIRES(mutex_);
  // has_state: one of those is there.
  void add_end(WriteBatch& batch, bool has_state) REQUIRES(mutex_);
  void fail(RequestOutcome why) REQUIRES(mutex_);
  // Another process may have taken the session over by now: delivers nothing more.
  void fail_past_lease() REQUIRES(mutex_);
  // After a refusal of the storage: whether there is still hope.
  bool is_patient(SessionError outcome, Writing was) REQUIRES(mutex_);

  CallWriter& writer_;
  const IdempotencyKey terms_;
  const Durability level_;
  const bool draws_;
  // Constant after begin().
  SessionHistory* history_ = nullptr;  // of the lease
  StoredCall call_;
  std::int64_t first_drawn_ = 0;  // position of the first token after the prompt
  std::int64_t run_start_ = 0;    // the first that this run reaches
  std::int64_t drawn_end_ = 0;    // after the last that an earlier run reached
  SessionStorage::Claim claim_;
  std::shared_ptr<const ClaimLease> claim_lease_;  // null: it is good until it is released
  bool has_claim_ = false;                         // begin() was well
  bool numerics_changed_ = false;  // the tokens before it have another machine's bits
  // Constant from kRunning on.
  std::shared_ptr<TokenSink> sink_;
  RequestHandle handle_;

  mutable Mutex mutex_;
  State state_ GUARDED_BY(mutex_) = State::kOpening;
  SharedModel model_ GUARDED_BY(mutex_);        // until the call is over
  SessionStorage::Row row_ GUARDED_BY(mutex_);  // as the storage has it
  bool was_open_ GUARDED_BY(mutex_);  // in the storage: another run of it began, and had no end
  bool is_long_ GUARDED_BY(mutex_) = false;
  bool is_begun_ GUARDED_BY(mutex_) = false;  // its beginning is durable, or need not be
  bool is_checked_ GUARDED_BY(mutex_) =
      false;  // run again, it came to the very tokens of the storage
  Writing writing_ GUARDED_BY(mutex_) = Writing::kNothing;
  std::int64_t writing_to_ GUARDED_BY(mutex_) = 0;  // position and digest after it
  Digest writing_digest_ GUARDED_BY(mutex_);
  std::optional<StoredStates> writing_states_ GUARDED_BY(mutex_);
  TimePoint last_write_ GUARDED_BY(mutex_);
  std::optional<TimePoint> failing_since_ GUARDED_BY(mutex_);
  std::optional<RequestOutcome> failure_ GUARDED_BY(mutex_);  // of the storage

  SessionLease lease_ GUARDED_BY(mutex_);  // once the request is over
  bool is_handed_over_ GUARDED_BY(mutex_) = false;
  bool state_was_tried_ GUARDED_BY(mutex_) = false;
  StoredStates end_state_ GUARDED_BY(mutex_);  // put, for the end to name
  std::optional<SampleResult> result_ GUARDED_BY(mutex_);
  std::optional<RequestOutcome> outcome_ GUARDED_BY(mutex_);
  std::int64_t shown_end_ GUARDED_BY(mutex_) = 0;  // after the last token that came
  std::int64_t skipped_given_ GUARDED_BY(mutex_) =
      0;  // given tokens that this run does not come to

  // A state on its way to the storage: the worker's until checkpoint_at_ says how many tokens it
  // has, then the collecting thread's, which zeroes checkpoint_at_.
  PagedState checkpoint_;
  std::int64_t checkpoint_at_ GUARDED_BY(mutex_) = 0;
  std::atomic<std::int64_t> next_checkpoint_;  // due where the sequence has so many

  std::vector<HeldToken> held_ GUARDED_BY(mutex_);
  bool delivering_ GUARDED_BY(mutex_) = false;
  bool is_paused_ GUARDED_BY(mutex_) = false;  // for what is held
};

}  // namespace lintel
