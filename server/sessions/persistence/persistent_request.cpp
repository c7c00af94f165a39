// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/persistent_request.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <new>
#include <span>
#include <utility>

#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "server/core/threads.h"
#include "server/engine/request.h"
#include "server/sessions/persistence/call_writer.h"

namespace lintel {
namespace {

// The sources of a call's tokens, at all positions it may reach.
std::vector<HistoryMark> marks_of_call(std::int64_t start, std::int64_t prompt_tokens,
                                       const std::vector<GivenToken>& given) {
  std::vector<HistoryMark> marks;
  if (prompt_tokens > 0) marks.push_back({start, TokenSource::kPrompt});
  std::int64_t next = start + prompt_tokens;
  for (auto value = given.begin(); value != given.end(); ++value) {
    const bool goes_on = value != given.begin() && value->position == next;
    if (!goes_on) {
      if (value->position > next) marks.push_back({next, TokenSource::kSampled});
      marks.push_back({value->position, TokenSource::kGiven});
    }
    next = value->position + 1;
  }
  marks.push_back({next, TokenSource::kSampled});
  return marks;
}

}  // namespace

PersistentRequest::PersistentRequest(CallWriter& writer, SharedModel model,
                                     SessionStorage::Opened stored, IdempotencyKey terms,
                                     std::int64_t start, bool draws)
    : writer_(writer),
      terms_(std::move(terms)),
      level_(stored.row.durability),
      draws_(draws),
      claim_(stored.claim),
      claim_lease_(std::move(stored.lease)),
      model_(std::move(model)),
      row_(std::move(stored.row)) {
  MutexLock lock(mutex_);
  was_open_ = !row_.call.empty();
  is_begun_ = was_open_ || !draws_ || level_ == Durability::kCall;
  call_.start = start;
  next_checkpoint_ = next_checkpoint();
  last_write_ = writer_.clock().now();
}

PersistentRequest::~PersistentRequest() {
  MutexLock lock(mutex_);
  if ((!has_claim_ && claim_lease_ == nullptr) || is_over()) return;
  // It was refused for another reason, or the writer never had it, for lack of memory.
  catch_exceptions(
      [&]() REQUIRES(mutex_) { writer_.lost_claims().give_back(writer_.storage(), row_, claim_); },
      [] {});
}

SessionRefusal PersistentRequest::begin(const SessionLease& lease, const GenerationRequest& request,
                                        std::int64_t prompt_tokens) {
  history_ = lease.history();
  run_start_ = history_->position();
  call_ = {.id = terms_.id,
           .request = terms_.request,
           .start = call_.start,
           .seed = request.seed,
           .marks = marks_of_call(call_.start, prompt_tokens, request.given)};
  checkpoint_.bytes.reserve(checkpoint_bytes(request));  // here and not in a step
  std::string id, owner;
  {
    MutexLock lock(mutex_);
    call_.numerics = model_->numerics().hex;
    numerics_changed_ =
        call_.start > 0 &&
        other_numerics(row_, decode_marks(row_.marks).value_or(StoredMarks()), call_.numerics);
    first_drawn_ = call_.start + prompt_tokens;
    shown_end_ = std::max(first_drawn_, run_start_);
    drawn_end_ = row_.position;
    is_checked_ = run_start_ == row_.position;
    id = row_.id;
    owner = row_.owner;
  }
  has_claim_ = claim_lease_ != nullptr;
  if (!has_claim_) {
    const SessionStorage::Opened opened = writer_.storage().open(id, owner, nullptr);
    if (opened.outcome != SessionError::kNone) return refusal_of(opened);
    MutexLock lock(mutex_);
    has_claim_ = opened.row == row_;
    if (!has_claim_) {  // it has changed since it was read
      writer_.lost_claims().give_back(writer_.storage(), opened.row, opened.claim);
      return {SessionError::kStale};
    }
    claim_ = opened.claim;
    claim_lease_ = opened.lease;
  }
  writer_.add(shared_from_this());
  return {};
}

Scheduler::SubmitError PersistentRequest::submit(GenerationRequest request, SessionLease lease,
                                                 std::shared_ptr<TokenSink> sink,
                                                 const RequestHandle& handle) {
  skip_past(request);
  SharedModel model;
  {
    MutexLock lock(mutex_);
    sink_ = std::move(sink);
    handle_ = handle;
    move_to(State::kRunning);
    model = model_;
    is_handed_over_ = writer_.hands_over() && !terms_.id.empty();
    if (failure_ || is_handed_over_) model->scheduler->cancel(handle_);
  }
  const auto not_run = [&] {
    {
      MutexLock lock(mutex_);
      move_to(State::kDraining);
    }
    writer_.wake();
  };
  try {
    const Scheduler::SubmitError error =
        model->scheduler->submit(std::move(request), std::move(lease), shared_from_this(), handle_);
    if (error != Scheduler::SubmitError::kNone) not_run();
    return error;
  } catch (...) {
    not_run();
    throw;
  }
}

void PersistentRequest::move_to(State next) {
  assert(next == State::kRunning    ? state_ == State::kOpening
         : next == State::kDraining ? state_ < State::kDraining
                                    : state_ == State::kDraining);
  state_ = next;
}

bool PersistentRequest::may_see(std::int64_t position) const {
  if (failure_) return false;
  if (is_over() || level_ == Durability::kCall || position < row_.position) return true;
  return level_ == Durability::kInput && is_begun_;
}

void PersistentRequest::fail_past_lease() {
  if (claim_lease_ == nullptr || is_over() || writer_.clock().now() < claim_lease_->until()) return;
  fail(SessionError::kStoreAway);
}

bool PersistentRequest::on_token(const TokenEvent& event) {
  bool is_mine = false;  // to be delivered at once
  {
    MutexLock lock(mutex_);
    shown_end_ = event.position + 1;
    fail_past_lease();
    if (failure_) return true;  // it is being cancelled
    is_mine = !delivering_ && held_.empty() && may_see(event.position);
    if (is_mine) {
      delivering_ = true;
    } else {
      held_.emplace_back(event);
      is_paused_ |= held_.size() >= kMostHeld;
      if (is_paused_) return false;
    }
  }
  if (!is_mine) return sink_->has_room();
  bool has_room = true;
  try {
    has_room = deliver(event);
  } catch (...) {
    MutexLock lock(mutex_);
    delivering_ = false;
    throw;
  }
  deliver();
  return has_room;
}

void PersistentRequest::on_step_end() {
  if (level_ == Durability::kToken) writer_.wake_for_tokens();
  if (!begin_delivery()) return;  // the thread that delivers ends a step, too
  try {
    sink_->on_step_end();
  } catch (...) {
    MutexLock lock(mutex_);
    delivering_ = false;
    throw;
  }
  deliver();
}

void PersistentRequest::on_sample_finish(const SampleResult& result) {
  MutexLock lock(mutex_);
  result_ = result;
  result_->numerics_changed = numerics_changed_;
  // Tokens are counted for the whole call, not only for this run.
  result_->reused_tokens = call_.start;
  const std::int64_t past = std::min(run_start_, first_drawn_) - call_.start;
  const std::int64_t skipped = std::min(
      past, skipped_prompt(result_->window, terms_.scores_prompt(), call_.start, first_drawn_));
  result_->prompt_tokens += past - skipped;
  result_->skipped_tokens += skipped;
  result_->restarts = window_restarts(result.window, call_.start, result.position);
  result_->generated_tokens += std::max<std::int64_t>(run_start_ - first_drawn_, 0);
  result_->given_tokens += skipped_given_;
  result_->replayed_tokens +=
      std::max<std::int64_t>(std::min(result.position, drawn_end_) - run_start_, 0);
}

void PersistentRequest::skip_past(GenerationRequest& request) {
  const std::int64_t past = run_start_ - call_.start;
  const auto of_prompt = std::min(past, static_cast<std::int64_t>(request.prompt.size()));
  request.prompt.erase(request.prompt.begin(), request.prompt.begin() + of_prompt);
  request.max_new_tokens -= std::max<std::int64_t>(run_start_ - first_drawn_, 0);
  const auto behind =
      std::ranges::lower_bound(request.given, run_start_, {}, &GivenToken::position);
  MutexLock lock(mutex_);
  skipped_given_ = behind - request.given.begin();
  request.given.erase(request.given.begin(), behind);
}

void PersistentRequest::on_finish(RequestOutcome outcome) {
  {
    MutexLock lock(mutex_);
    outcome_ = outcome;
    move_to(State::kDraining);
  }
  writer_.wake();
}

void PersistentRequest::keep(SessionLease lease) noexcept {
  SessionLease gone;
  {
    MutexLock lock(mutex_);
    if (has_claim_) {
      if (state_ == State::kOpening) move_to(State::kDraining);  // it was never submitted
      lease_ = std::move(lease);
    } else {
      // It never began. The tokens of a call to be repeated are only in the storage now.
      if (lease.history()->position() < row_.position) lease.discard();
      gone = std::move(lease);
    }
  }
  writer_.wake();
}

bool PersistentRequest::begin_delivery() {
  MutexLock lock(mutex_);
  return sink_ != nullptr && !std::exchange(delivering_, true);
}

void PersistentRequest::deliver() {
  while (true) {
    std::vector<HeldToken> batch;
    SharedModel resumed;
    bool ends = false;
    {
      MutexLock lock(mutex_);
      fail_past_lease();
      const auto hidden = std::ranges::find_if(
          held_, [&](const HeldToken& held) REQUIRES(mutex_) { return !may_see(held.position()); });
      batch.assign(std::make_move_iterator(held_.begin()), std::make_move_iterator(hidden));
      held_.erase(held_.begin(), hidden);
      if (is_paused_ && held_.size() <= kMostHeld / 2) {
        is_paused_ = false;
        resumed = model_;
      }
      ends = batch.empty() && is_over() && outcome_;
      if (batch.empty() && !ends) {
        delivering_ = false;
        return;
      }
    }
    // A call whose sink has no memory for its tokens ends, as in the scheduler.
    const bool is_told = catch_exceptions(
        [&] {
          for (HeldToken& held : batch) deliver(held.event());
          if (!ends) sink_->on_step_end();
          return true;
        },
        [] { return false; });
    if (resumed != nullptr) resumed->scheduler->resume(handle_);
    if (ends) return deliver_end();  // and nothing more is delivered
    if (!is_told) {
      MutexLock lock(mutex_);
      fail(RequestOutcome::kInternal);
    }
  }
}

bool PersistentRequest::deliver(const TokenEvent& event) {
  return event.position < terms_.from_position || sink_->on_token(event);
}

void PersistentRequest::hand_over() {
  MutexLock lock(mutex_);
  // A call without an id cannot be repeated: it continues while it may.
  if (is_handed_over_ || terms_.id.empty() || state_ != State::kRunning || failure_) return;
  is_handed_over_ = true;
  model_->scheduler->cancel(handle_);
}

RequestOutcome PersistentRequest::client_outcome() const {
  if (failure_) return *failure_;
  const bool is_ending = *outcome_ == RequestOutcome::kShutdown && !model_->retired.load();
  const bool is_cut = is_ending || *outcome_ == RequestOutcome::kCancelled;
  const bool has_moved = is_cut && !terms_.id.empty() && (is_ending || is_handed_over_);
  return has_moved ? RequestOutcome(RequestOutcome::kMoved) : *outcome_;
}

void PersistentRequest::deliver_end() {
  std::optional<SampleResult> result;
  RequestOutcome outcome{};
  {
    MutexLock lock(mutex_);
    outcome = client_outcome();
    // A call that continues elsewhere has no result here.
    if (!failure_ && outcome != RequestOutcome::kMoved) result = std::move(result_);
    model_.reset();
  }
  catch_exceptions(
      [&] {
        if (!result) return;
        sink_->on_sample_finish(*result);
        sink_->on_step_end();
      },
      [&] { outcome = RequestOutcome::kInternal; });
  catch_exceptions([&] { sink_->on_finish(outcome); }, [] {});
}

bool PersistentRequest::is_urgent() const {
  MutexLock lock(mutex_);
  return !is_over() && ((level_ == Durability::kToken && !is_begun_) || lease_ || failing_since_);
}

// PersistentRequest: storing states, at its end, and during it if it is long.

void PersistentRequest::put_state(SessionLease& lease) {
  const SessionHistory::Extent extent = history_->extent();
  const SequenceState& sequence = lease.sequence();
  StoredStates stored;
  {
    MutexLock lock(mutex_);
    const std::int64_t last = last_state_of(row_.states);
    const bool drops_tokens =
        extent.base > decode_marks(row_.marks).value_or(StoredMarks()).oldest(row_);
    const bool is_worth_it = writer_.options().park.pays(
        lease.transformer(), extent.position - last, lease.memory_is_short());
    if (std::exchange(state_was_tried_, true) || sequence.next_position() != extent.position ||
        extent.position <= last || (!drops_tokens && !is_worth_it)) {
      return;
    }
    stored = states_with_own_pages();
  }
  try {
    PagedState saved;
    saved.save(sequence, stored);
    StoredStates put;
    if (saved.put(writer_.storage(), lease.session_id(), put) != SessionError::kNone) return;
    writer_.count_state();
    MutexLock lock(mutex_);
    end_state_ = std::move(put);
  } catch (const std::bad_alloc&) {  // it costs time only
  }
}

StoredStates PersistentRequest::states_with_own_pages() const {
  // Pages of tokens that were read again on another machine differ.
  return numerics_changed_ ? StoredStates() : row_.states;
}

std::size_t PersistentRequest::checkpoint_bytes(const GenerationRequest& request) const {
  const std::int64_t most =
      call_.start + static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (most < next_checkpoint_) return 0;
  MutexLock lock(mutex_);
  return model_->transformer->sequence_bytes(0);
}

std::int64_t PersistentRequest::next_checkpoint() const {
  // A state that does not grow in pages would be written as a whole each time.
  if (!draws_ || !model_->transformer->appends_state()) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return std::max({last_state_of(row_.states), checkpoint_at_, call_.start}) +
         writer_.options().park.on_the_way();
}

void PersistentRequest::at_rest(const SequenceState& sequence) noexcept {
  if (sequence.next_position() < next_checkpoint_.load(std::memory_order_relaxed)) return;
  try {
    StoredStates stored;
    {
      MutexLock lock(mutex_);
      const bool is_written = level_ != Durability::kCall || is_long_;
      if (!has_claim_ || failure_ || !is_written || checkpoint_at_ > 0) return;
      stored = states_with_own_pages();
    }
    checkpoint_.save(sequence, stored);
  } catch (const std::bad_alloc&) {  // it costs time only
    checkpoint_.clear();
    return;
  }
  MutexLock lock(mutex_);
  checkpoint_at_ = sequence.next_position();
  next_checkpoint_ = next_checkpoint();
}

void PersistentRequest::collect_checkpoint(WriteBatch& batch) {
  SessionStorage::SessionId id;
  {
    MutexLock lock(mutex_);
    id = row_.id;
  }
  const std::size_t before = batch.size();
  const StoredStates put = put_checkpoint(id);
  MutexLock lock(mutex_);
  checkpoint_at_ = 0;
  const SessionHistory::Extent extent = history_->extent();
  const bool is_well = extends_storage(extent);
  if (!is_well) fail(RequestOutcome::kInternal);
  if (is_well) {
    add_tokens(extent, batch);
    last_write_ = writer_.clock().now();
  }
  if (is_well && !put.empty()) {
    SessionStorage::Write write = next_write(SessionStorage::Write::Kind::kState);
    write.before = write.after = extent.digest;
    write.position = extent.position;
    StoredStates states = row_.states;
    add_states(states, put, call_.start);
    batch.add(write, encode_change({.states = states}));
    writing_states_ = std::move(states);
  }
  if (batch.size() == before) writing_ = Writing::kNothing;
}

StoredStates PersistentRequest::put_checkpoint(const SessionStorage::SessionId& id) noexcept {
  StoredStates put;
  SessionError outcome = SessionError::kStoreAway;
  try {
    outcome = checkpoint_.put(writer_.storage(), id, put);
  } catch (const std::bad_alloc&) {
  }
  checkpoint_.clear();
  if (outcome != SessionError::kNone) return {};
  writer_.count_state();
  return put;
}

// PersistentRequest: its writes to the storage.

namespace {

using Kind = SessionStorage::Write::Kind;

// The outcome of a request for an error of the storage.
RequestOutcome outcome_of(SessionError error) {
  // The session is gone or older than expected: another process had it.
  if (error == SessionError::kRolledBack || error == SessionError::kNotFound) {
    return SessionError::kFenced;
  }
  return error == SessionError::kHeld ? SessionError::kStoreAway : error;
}

}  // namespace

void PersistentRequest::collect(WriteBatch& batch, bool all_tokens) {
  bool has_ended = false;
  {
    MutexLock lock(mutex_);
    if (is_over() || writing_ != Writing::kNothing) return;
    has_ended = is_ending();
    if (!has_ended) {
      if (failure_ || (level_ == Durability::kCall && !is_long())) return;
      if (!is_begun_) return collect_begin(batch);
      const bool is_first = row_.position <= first_drawn_;
      if (checkpoint_at_ == 0 || history_->position() < row_.position) {
        if (level_ == Durability::kToken && !all_tokens && !is_first) return;
        return collect_tokens(batch);
      }
    }
    writing_ = has_ended ? Writing::kEnd : Writing::kTokens;
  }
  if (has_ended) return collect_end(batch);
  collect_checkpoint(batch);
}

bool PersistentRequest::is_long() {
  if (!is_long_ && draws_ && history_->may_forget(row_.position)) {
    is_long_ = true;
    is_begun_ = was_open_;
  }
  return is_long_;
}

SessionStorage::Write PersistentRequest::next_write(Kind kind) const {
  return {.kind = kind,
          .id = row_.id,
          .claim = claim_,
          .before = row_.digest,
          .after = row_.digest,
          .position = row_.position};
}

void PersistentRequest::collect_begin(WriteBatch& batch) {
  // A TOKEN call shows nothing before a token is durable, so its beginning is written with the
  // first ones; but it waits no longer than they would wait for others.
  const bool waits_for_tokens = level_ == Durability::kToken;
  const bool has_tokens = history_->position() > row_.position;
  if (waits_for_tokens && !has_tokens &&
      writer_.clock().now() - last_write_ < writer_.options().interval) {
    return;
  }
  batch.add(next_write(Kind::kBegin), encode_change({.call = encode_call(call_)}));
  writing_to_ = row_.position;
  writing_digest_ = row_.digest;
  if (waits_for_tokens && has_tokens) collect_tokens(batch);
  writing_ = Writing::kBegin;
}

void PersistentRequest::collect_tokens(WriteBatch& batch) {
  const SessionHistory::Extent extent = history_->extent();
  const std::int64_t count = extent.position - row_.position;
  if (count <= 0) return;
  const TimePoint now = writer_.clock().now();
  const CallWriter::Options& options = writer_.options();
  const bool is_due = level_ == Durability::kToken || count >= options.lazy_tokens ||
                      now - last_write_ >= options.lazy_interval;
  if (!is_due) return;
  if (!extends_storage(extent)) return fail(RequestOutcome::kInternal);
  add_tokens(extent, batch);
  last_write_ = now;
  writing_ = Writing::kTokens;
}

bool PersistentRequest::extends_storage(const SessionHistory::Extent& extent) {
  if (extent.position < row_.position) return false;
  is_checked_ = is_checked_ || history_->digest_at(row_.position) == row_.digest;
  if (!is_checked_) {
    spdlog::error("a call that was run again came to other tokens than those in the storage");
  }
  return is_checked_;
}

void PersistentRequest::add_tokens(const SessionHistory::Extent& extent, WriteBatch& batch) {
  writing_to_ = extent.position;
  writing_digest_ = extent.digest;
  if (extent.position == row_.position) return;
  std::vector<std::int32_t> tokens = history_->tokens(row_.position, extent.position);
  SessionStorage::Write write = next_write(Kind::kValues);
  write.after = extent.digest;
  write.position = extent.position;
  batch.add(write, encode_tokens(tokens));
  zero_memory(std::span(tokens));
}

void PersistentRequest::collect_end(WriteBatch& batch) {
  SessionLease* lease = nullptr;  // exclusive while its end is written
  bool stores = false;
  StoredStates all, needed;  // one of `needed` has to exist to release tokens
  {
    MutexLock lock(mutex_);
    lease = &lease_;
    if (!lease->discarded()) lease->end_call();
    stores = !failure_ && !lease->discarded() && extends_storage(history_->extent()) &&
             !has_shown_more();
    if (stores) needed = states_of_tokens();
    if (!needed.empty()) all = row_.states;
  }
  if (stores) put_state(*lease);
  const bool has_state = std::ranges::any_of(needed, [&](const SessionStorage::StateRef& state) {
    return holds_state(writer_.storage(), all, state);
  });

  MutexLock lock(mutex_);
  if (stores) return add_end(batch, has_state);
  const bool is_short = !failure_ && !lease->discarded() && !was_open_;
  // A repeated call that had ended before is over.
  batch.add(next_write(is_short ? Kind::kEnd : Kind::kRelease), {});
  lease->discard();
  writing_ = Writing::kRelease;
}

bool PersistentRequest::has_shown_more() const {
  const bool is_cut = !outcome_ || *outcome_ != RequestOutcome::kDone;
  const std::int64_t position = history_->position();
  return is_cut && was_open_ && (position < terms_.from_position || position == drawn_end_);
}

void PersistentRequest::not_collected() {
  MutexLock lock(mutex_);
  writing_ = Writing::kNothing;
  writing_states_.reset();
}

StoredStates PersistentRequest::states_of_tokens() const {
  StoredStates states;
  const StoredMarks marks = decode_marks(row_.marks).value_or(StoredMarks());
  if (marks.bases.empty()) return states;
  std::ranges::copy_if(row_.states, std::back_inserter(states), [&](const auto& state) {
    return !state.is_pages && state.position >= marks.oldest(row_);
  });
  return states;
}

void PersistentRequest::add_end(WriteBatch& batch, bool has_state) {
  const SessionHistory::Extent extent = history_->extent();
  // The next server asks for the session at once: nothing here may claim it again, as storing its
  // state at the end of the process would.
  if (outcome_ && client_outcome() == RequestOutcome::kMoved) lease_.discard();
  // A call that continues elsewhere has not ended, and no other call may come in between.
  const bool goes_on_elsewhere = outcome_ && draws_ && level_ != Durability::kCall &&
                                 (was_open_ || extent.position > call_.start) &&
                                 client_outcome() == RequestOutcome::kMoved;
  if (goes_on_elsewhere && !is_begun_) {
    batch.add(next_write(Kind::kBegin), encode_change({.call = encode_call(call_)}));
  }
  add_tokens(extent, batch);
  SessionStorage::Write write = next_write(Kind::kState);
  write.before = write.after = extent.digest;
  write.position = extent.position;
  StoredMarks marks = decode_marks(row_.marks).value_or(StoredMarks());
  RowChange change;
  if (!end_state_.empty()) {
    StoredStates states = row_.states;
    add_states(states, end_state_, call_.start);
    // A state replaces tokens that memory has dropped.
    if (extent.base > marks.oldest(row_)) {
      marks.bases.push_back({extent.base, *history_->digest_at(extent.base)});
      std::erase_if(states, [&](const auto& state) {
        return !state.is_pages && state.position < extent.base;
      });
    }
    batch.add(write, encode_change({.states = std::move(states)}));
  }
  if (goes_on_elsewhere) {
    write.kind = Kind::kRelease;
    return batch.add(write, {});
  }
  const std::vector<LastCall> calls = last_calls(extent.position);
  // A state may have been dropped to make room: without one the tokens are needed.
  const std::int64_t base =
      !end_state_.empty() || has_state ? release_tokens(calls, row_.base, marks) : row_.base;
  if (base > row_.base) change.base = base;
  if (extent.base > call_.start) {  // memory has dropped its first tokens
    std::erase_if(marks.marks, [&](const auto& mark) { return mark.position > call_.start; });
    append_marks(call_, row_.base, extent.base, marks.marks);
  }
  marks.marks = marks_of(marks.marks, base, *history_, extent.position);
  if (extent.position > call_.start) note_numerics(call_, row_, marks);
  change.last_calls = calls.empty() ? "" : encode_last_calls(calls);
  change.marks = encode_marks(marks);
  const auto expire_after = marks.options.expire_after.count() > 0 ? marks.options.expire_after
                                                                   : writer_.options().expire_after;
  change.used = writer_.clock().wall_time();
  change.expires = *change.used + expire_after;
  write.kind = Kind::kEnd;
  batch.add(write, encode_change(change));
}

std::vector<LastCall> PersistentRequest::last_calls(std::int64_t end) const {
  std::vector<LastCall> calls =
      decode_last_calls(row_.last_calls).value_or(std::vector<LastCall>());
  if (terms_.id.empty() || end == call_.start || !outcome_ || !draws_) return calls;
  std::erase_if(calls, [&](const LastCall& call) { return call.id == terms_.id; });
  SampleResult result = result_.value_or(SampleResult());
  result.seed = call_.seed;
  calls.push_back({.id = terms_.id,
                   .request = terms_.request,
                   .start = call_.start,
                   .end = end,
                   .shown_end = shown_end_,
                   .finished = *outcome_ == RequestOutcome::kDone,
                   .result = std::move(result)});
  if (calls.size() > kLastCalls) calls.erase(calls.begin());
  return calls;
}

void PersistentRequest::written(std::span<const SessionError> outcomes) {
  const auto refused = std::ranges::find_if(
      outcomes, [](SessionError outcome) { return outcome != SessionError::kNone; });
  const bool is_done = refused == outcomes.end();
  SessionLease over;
  std::optional<State> last;  // the state that it reaches now
  bool ends = false;
  {
    MutexLock lock(mutex_);
    const Writing was = writing_;
    if (is_done) {
      failing_since_.reset();
      is_begun_ = true;
      if (was != Writing::kRelease) {
        row_.position = writing_to_;
        row_.digest = writing_digest_;
        if (writing_states_) row_.states = *std::move(writing_states_);
      }
    } else if (was == Writing::kRelease) {
      if (*refused == SessionError::kStoreFull || *refused == SessionError::kStoreAway) {
        writer_.lost_claims().add(row_.id, row_.owner, claim_);
      }
    } else if (!is_patient(*refused, was)) {
      fail(outcome_of(*refused));
    }
    writing_states_.reset();
    if (was == Writing::kRelease) last = State::kReleased;
    if (was == Writing::kEnd && is_done) last = State::kCommitted;
    // Nothing more is collected of a call that is over.
    if (!last) writing_ = Writing::kNothing;
    ends = is_ending();
    if (last) over = std::move(lease_);
  }
  over = SessionLease();  // the session is released before its client receives the end
  if (last) {
    MutexLock lock(mutex_);
    move_to(*last);
  }
  if (begin_delivery()) deliver();
  if (last) {
    writer_.remove(*this);
  } else if (!is_done || ends) {
    writer_.wake();
  } else if (level_ == Durability::kToken) {
    writer_.wake_for_tokens();  // those that came meanwhile
  }
}

bool PersistentRequest::is_patient(SessionError outcome, Writing was) {
  if (outcome != SessionError::kStoreFull && outcome != SessionError::kStoreAway) return false;
  if (was == Writing::kBegin) return false;  // nothing is lost yet
  const TimePoint now = writer_.clock().now();
  if (!failing_since_) failing_since_ = now;
  return now - *failing_since_ < writer_.options().patience;
}

void PersistentRequest::fail(RequestOutcome why) {
  if (failure_) return;
  failure_ = why;
  held_.clear();
  if (state_ == State::kRunning) model_->scheduler->cancel(handle_);
}

}  // namespace lintel
