// DurableCall, what it writes to the vault.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "model/core/tensor.h"
#include "server/sessions/persistence/durable_call.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {
namespace {

using Kind = SessionVault::Write::Kind;

RequestOutcome outcome_of(VaultOutcome outcome) {
  if (outcome == VaultOutcome::kFull) return RequestOutcome::kStoreFull;
  if (outcome == VaultOutcome::kBroken) return RequestOutcome::kStoreBroken;
  if (outcome == VaultOutcome::kCorrupt) return RequestOutcome::kStoreDamaged;
  const bool is_lost = outcome == VaultOutcome::kFenced || outcome == VaultOutcome::kRolledBack ||
                       outcome == VaultOutcome::kNotFound;
  if (is_lost) return RequestOutcome::kFenced;
  return RequestOutcome::kStoreAway;
}

}  // namespace

void DurableCall::collect(VaultBatch& batch, bool all_values) {
  bool has_ended = false;
  {
    MutexLock lock(mutex_);
    if (is_over_ || writing_ != Writing::kNothing) return;
    has_ended = lease_ && !runs_;
    if (!has_ended) {
      if (failure_ || (level_ == Durability::kCall && !is_long())) return;
      if (!is_begun_) return collect_begin(batch);
      const bool is_first = row_.position <= first_drawn_;
      if (checkpoint_at_ == 0 || history_->position() < row_.position) {
        if (level_ == Durability::kToken && !all_values && !is_first) return;
        return collect_values(batch);
      }
    }
    writing_ = has_ended ? Writing::kEnd : Writing::kValues;
  }
  if (has_ended) return collect_end(batch);
  collect_checkpoint(batch);
}

bool DurableCall::is_long() {
  if (!is_long_ && draws_ && history_->may_forget(row_.position)) {
    is_long_ = true;
    is_begun_ = was_open_;
  }
  return is_long_;
}

SessionVault::Write DurableCall::next_write(Kind kind) const {
  return {.kind = kind,
          .id = row_.id,
          .claim = claim_,
          .before = row_.digest,
          .after = row_.digest,
          .position = row_.position};
}

void DurableCall::collect_begin(VaultBatch& batch) {
  // Nothing of a TOKEN call is seen before a value is durable, so that its beginning waits for the
  // first ones and goes with them; but no longer than they would wait for others.
  const bool waits_for_values = level_ == Durability::kToken;
  const bool has_values = history_->position() > row_.position;
  if (waits_for_values && !has_values &&
      writer_.clock().now() - last_write_ < writer_.options().interval) {
    return;
  }
  batch.add(next_write(Kind::kBegin), encode_change({.call = encode_call(call_)}));
  writing_to_ = row_.position;
  writing_digest_ = row_.digest;
  if (waits_for_values && has_values) collect_values(batch);
  writing_ = Writing::kBegin;
}

void DurableCall::collect_values(VaultBatch& batch) {
  const SessionHistory::Extent extent = history_->extent();
  const std::int64_t count = extent.position - row_.position;
  if (count <= 0) return;
  const TimePoint now = writer_.clock().now();
  const CallWriter::Options& options = writer_.options();
  const bool is_due = level_ == Durability::kToken || count >= options.lazy_values ||
                      now - last_write_ >= options.lazy_interval;
  if (!is_due) return;
  if (!goes_on(extent)) return fail(RequestOutcome::kInternal);
  add_values(extent, batch);
  last_write_ = now;
  writing_ = Writing::kValues;
}

bool DurableCall::goes_on(const SessionHistory::Extent& extent) {
  if (extent.position < row_.position) return false;
  is_checked_ = is_checked_ || history_->digest_at(row_.position) == row_.digest;
  if (!is_checked_) {
    spdlog::error("a call that was run again came to other values than those in the store");
  }
  return is_checked_;
}

void DurableCall::add_values(const SessionHistory::Extent& extent, VaultBatch& batch) {
  writing_to_ = extent.position;
  writing_digest_ = extent.digest;
  if (extent.position == row_.position) return;
  std::vector<std::int32_t> values = history_->values(row_.position, extent.position);
  SessionVault::Write write = next_write(Kind::kValues);
  write.after = extent.digest;
  write.position = extent.position;
  batch.add(write, encode_values(values));
  zero_memory(std::span(values));
}

void DurableCall::collect_end(VaultBatch& batch) {
  SessionLease* lease = nullptr;  // exclusive, while its end is being written
  bool stores = false;
  std::vector<SessionVault::StateRef> needed;  // one of them, for values to be let go of
  {
    MutexLock lock(mutex_);
    lease = &lease_;
    if (!lease->discarded()) lease->end_call();
    stores = !failure_ && !lease->discarded() && goes_on(history_->extent()) && !has_shown_more();
    if (stores) needed = states_behind_values();
  }
  if (stores) put_state(*lease);
  const bool has_state = std::ranges::any_of(needed, [&](const SessionVault::StateRef& state) {
    return writer_.vault().holds_state(state);
  });

  MutexLock lock(mutex_);
  if (stores) return add_end(batch, has_state);
  const bool is_short = !failure_ && !lease->discarded() && !was_open_;
  // A call that was over when it was run again is over.
  batch.add(next_write(is_short ? Kind::kEnd : Kind::kRelease), {});
  lease->discard();
  writing_ = Writing::kRelease;
}

bool DurableCall::has_shown_more() const {
  const bool is_cut = !outcome_ || *outcome_ != RequestOutcome::kDone;
  const std::int64_t position = history_->position();
  return is_cut && was_open_ && (position < terms_.from_position || position == drawn_end_);
}

void DurableCall::not_collected() {
  MutexLock lock(mutex_);
  writing_ = Writing::kNothing;
  writing_states_.reset();
}

std::vector<SessionVault::StateRef> DurableCall::states_behind_values() const {
  std::vector<SessionVault::StateRef> states;
  const StoredMarks marks = decode_marks(row_.marks).value_or(StoredMarks());
  if (marks.bases.empty()) return states;
  std::ranges::copy_if(row_.states, std::back_inserter(states),
                       [&](const auto& state) { return state.position >= marks.oldest(row_); });
  return states;
}

void DurableCall::add_end(VaultBatch& batch, bool has_state) {
  const SessionHistory::Extent extent = history_->extent();
  // The next server asks for the session at once: nothing here may claim it again, as parking it
  // before the process ends would.
  if (outcome_ && told_outcome() == RequestOutcome::kMoved) lease_.discard();
  // A call that continues elsewhere has not ended, and no other call may come in between.
  const bool goes_on_elsewhere = outcome_ && draws_ && level_ != Durability::kCall &&
                                 (was_open_ || extent.position > call_.start) &&
                                 told_outcome() == RequestOutcome::kMoved;
  if (goes_on_elsewhere && !is_begun_) {
    batch.add(next_write(Kind::kBegin), encode_change({.call = encode_call(call_)}));
  }
  add_values(extent, batch);
  SessionVault::Write write = next_write(Kind::kState);
  write.before = write.after = extent.digest;
  write.position = extent.position;
  StoredMarks marks = decode_marks(row_.marks).value_or(StoredMarks());
  RowChange change;
  if (state_) {
    std::vector<SessionVault::StateRef> states = row_.states;
    add_state(states, *state_, call_.start);
    // For values that memory has let go of a state stands.
    if (extent.base > marks.oldest(row_)) {
      marks.bases.push_back({extent.base, *history_->digest_at(extent.base)});
      std::erase_if(states, [&](const auto& state) { return state.position < extent.base; });
    }
    batch.add(write, encode_change({.states = std::move(states)}));
  }
  if (goes_on_elsewhere) {
    write.kind = Kind::kRelease;
    return batch.add(write, {});
  }
  const std::vector<LastCall> calls = last_calls(extent.position);
  // A state may have been dropped to make room: without one the values are what leads on.
  const std::int64_t base =
      state_ || has_state ? let_go_of_values(calls, row_.base, marks) : row_.base;
  if (base > row_.base) change.base = base;
  if (extent.base > call_.start) {  // memory has let go of its first values
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

std::vector<LastCall> DurableCall::last_calls(std::int64_t end) const {
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

void DurableCall::written(std::span<const VaultOutcome> outcomes) {
  const auto refused = std::ranges::find_if(
      outcomes, [](VaultOutcome outcome) { return outcome != VaultOutcome::kDone; });
  const bool is_done = refused == outcomes.end();
  SessionLease over;
  bool is_over = false, ends = false;
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
      if (*refused == VaultOutcome::kFull || *refused == VaultOutcome::kUnavailable) {
        writer_.lost_claims().add(row_.id, row_.owner, claim_);
      }
    } else if (!is_patient(*refused, was)) {
      fail(outcome_of(*refused));
    }
    writing_states_.reset();
    is_over = was == Writing::kRelease || (was == Writing::kEnd && is_done);
    // Over, nothing is collected of it any more.
    if (!is_over) writing_ = Writing::kNothing;
    ends = lease_ && !runs_;
    if (is_over) over = std::move(lease_);
  }
  over = SessionLease();  // the session is returned before its client hears of the end
  if (is_over) {
    MutexLock lock(mutex_);
    is_over_ = true;
  }
  if (begin_delivery()) deliver();
  if (is_over) {
    writer_.remove(*this);
  } else if (!is_done || ends) {
    writer_.wake();
  } else if (level_ == Durability::kToken) {
    writer_.wake_for_values();  // those that came meanwhile
  }
}

bool DurableCall::is_patient(VaultOutcome outcome, Writing was) {
  if (outcome != VaultOutcome::kFull && outcome != VaultOutcome::kUnavailable) return false;
  if (was == Writing::kBegin) return false;  // nothing is lost yet
  const TimePoint now = writer_.clock().now();
  if (!failing_since_) failing_since_ = now;
  return now - *failing_since_ < writer_.options().patience;
}

void DurableCall::fail(RequestOutcome why) {
  if (failure_) return;
  failure_ = why;
  held_.clear();
  if (runs_) model_->scheduler->cancel(handle_);
}

}  // namespace lintel
