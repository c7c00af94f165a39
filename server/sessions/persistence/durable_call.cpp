// DurableCall, what the scheduler and the sink see of it. durable_call_writes.cpp has the vault's
// side.
#include "server/sessions/persistence/durable_call.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "model/core/tensor.h"
#include "server/core/guarded.h"
#include "server/engine/recent_values.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {
namespace {

// Where the values of a call come from, at all positions it may reach.
std::vector<HistoryMark> marks_of_call(std::int64_t start, std::int64_t prompt_values,
                                       const std::vector<GivenValue>& given) {
  std::vector<HistoryMark> marks;
  if (prompt_values > 0) marks.push_back({start, ValueSource::kPrompt});
  std::int64_t next = start + prompt_values;
  for (auto value = given.begin(); value != given.end(); ++value) {
    const bool goes_on = value != given.begin() && value->position == next;
    if (!goes_on) {
      if (value->position > next) marks.push_back({next, ValueSource::kSampled});
      marks.push_back({value->position, ValueSource::kGiven});
    }
    next = value->position + 1;
  }
  marks.push_back({next, ValueSource::kSampled});
  return marks;
}

}  // namespace

DurableCall::DurableCall(CallWriter& writer, SharedModel model, SessionVault::Opened stored,
                         CallTerms terms, std::int64_t start, bool draws)
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

DurableCall::~DurableCall() {
  zero_memory(std::span(checkpoint_));
  MutexLock lock(mutex_);
  if ((!has_claim_ && claim_lease_ == nullptr) || is_over_) return;
  // It was refused for something else, or the writer never had it, for want of memory.
  guarded([&]()
              REQUIRES(mutex_) { writer_.lost_claims().give_back(writer_.vault(), row_, claim_); },
          [] {});
}

SessionRefusal DurableCall::begin(const SessionLease& lease, const GenerationRequest& request,
                                  std::int64_t prompt_values) {
  history_ = lease.history();
  goes_on_at_ = history_->position();
  call_ = {.id = terms_.id,
           .request = terms_.request,
           .start = call_.start,
           .seed = request.seed,
           .marks = marks_of_call(call_.start, prompt_values, request.given)};
  checkpoint_.reserve(checkpoint_bytes(request));  // rather than in a step
  std::string id, owner;
  {
    MutexLock lock(mutex_);
    call_.numerics = model_->numerics.hex;
    numerics_changed_ =
        call_.start > 0 &&
        other_numerics(row_, decode_marks(row_.marks).value_or(StoredMarks()), call_.numerics);
    first_drawn_ = call_.start + prompt_values;
    shown_end_ = std::max(first_drawn_, goes_on_at_);
    drawn_end_ = row_.position;
    is_checked_ = goes_on_at_ == row_.position;
    id = row_.id;
    owner = row_.owner;
  }
  has_claim_ = claim_lease_ != nullptr;
  if (!has_claim_) {
    const SessionVault::Opened opened = writer_.vault().open(id, owner, nullptr);
    if (opened.outcome != VaultOutcome::kDone) return refusal_of(opened);
    MutexLock lock(mutex_);
    has_claim_ = opened.row == row_;
    if (!has_claim_) {  // it was changed since it was looked at
      writer_.lost_claims().give_back(writer_.vault(), opened.row, opened.claim);
      return {SessionError::kStale};
    }
    claim_ = opened.claim;
    claim_lease_ = opened.lease;
  }
  writer_.add(shared_from_this());
  return {};
}

Scheduler::SubmitError DurableCall::submit(GenerationRequest request, SessionLease lease,
                                           std::shared_ptr<TokenSink> sink,
                                           const RequestHandle& handle) {
  skip_past(request);
  SharedModel model;
  {
    MutexLock lock(mutex_);
    sink_ = std::move(sink);
    handle_ = handle;
    runs_ = is_submitted_ = true;
    model = model_;
    is_handed_over_ = writer_.hands_over() && !terms_.id.empty();
    if (failure_ || is_handed_over_) model->scheduler->cancel(handle_);
  }
  const auto not_run = [&] {
    {
      MutexLock lock(mutex_);
      runs_ = false;
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

bool DurableCall::may_see(std::int64_t position) const {
  if (failure_) return false;
  if (is_over_ || level_ == Durability::kCall || position < row_.position) return true;
  return level_ == Durability::kInput && is_begun_;
}

void DurableCall::fail_past_lease() {
  if (claim_lease_ == nullptr || is_over_ || writer_.clock().now() < claim_lease_->until()) return;
  fail(RequestOutcome::kStoreAway);
}

bool DurableCall::on_token(const TokenEvent& event) {
  bool is_mine = false;  // to tell, at once
  {
    MutexLock lock(mutex_);
    shown_end_ = event.position + 1;
    fail_past_lease();
    if (failure_) return true;  // it is being cancelled
    is_mine = !delivering_ && held_.empty() && may_see(event.position);
    if (is_mine) {
      delivering_ = true;
    } else {
      held_.push_back({event, {event.top.begin(), event.top.end()}});
      is_paused_ |= held_.size() >= kMostHeld;
      if (is_paused_) return false;
    }
  }
  if (!is_mine) return sink_->has_room();
  bool has_room = true;
  try {
    has_room = tell(event);
  } catch (...) {
    MutexLock lock(mutex_);
    delivering_ = false;
    throw;
  }
  deliver();
  return has_room;
}

void DurableCall::on_step_end() {
  if (level_ == Durability::kToken) writer_.wake_for_values();
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

void DurableCall::on_sample_finish(const SampleResult& result) {
  MutexLock lock(mutex_);
  result_ = result;
  result_->numerics_changed = numerics_changed_;
  // Of the whole call, not of this run alone.
  result_->reused_tokens = call_.start;
  const std::int64_t past = std::min(goes_on_at_, first_drawn_) - call_.start;
  const std::int64_t skipped = std::min(
      past, skipped_prompt(result_->window, terms_.scores_prompt(), call_.start, first_drawn_));
  result_->prompt_tokens += past - skipped;
  result_->skipped_tokens += skipped;
  result_->restarts = window_restarts(result.window, call_.start, result.position);
  result_->generated_tokens += std::max<std::int64_t>(goes_on_at_ - first_drawn_, 0);
  result_->given_tokens += skipped_given_;
  result_->replayed_tokens +=
      std::max<std::int64_t>(std::min(result.position, drawn_end_) - goes_on_at_, 0);
}

void DurableCall::skip_past(GenerationRequest& request) {
  const std::int64_t past = goes_on_at_ - call_.start;
  const auto of_prompt = std::min(past, static_cast<std::int64_t>(request.prompt.size()));
  request.prompt.erase(request.prompt.begin(), request.prompt.begin() + of_prompt);
  request.max_new_tokens -= std::max<std::int64_t>(goes_on_at_ - first_drawn_, 0);
  const auto behind =
      std::ranges::lower_bound(request.given, goes_on_at_, {}, &GivenValue::position);
  MutexLock lock(mutex_);
  skipped_given_ = behind - request.given.begin();
  request.given.erase(request.given.begin(), behind);
}

void DurableCall::on_finish(RequestOutcome outcome) {
  {
    MutexLock lock(mutex_);
    outcome_ = outcome;
    runs_ = false;
  }
  writer_.wake();
}

void DurableCall::keep(SessionLease lease) noexcept {
  SessionLease gone;
  {
    MutexLock lock(mutex_);
    if (has_claim_) {
      lease_ = std::move(lease);
    } else {
      // It never began. Where it was to be run again, its values are in the vault alone by now.
      if (lease.history()->position() < row_.position) lease.discard();
      gone = std::move(lease);
    }
  }
  writer_.wake();
}

bool DurableCall::begin_delivery() {
  MutexLock lock(mutex_);
  return is_submitted_ && !std::exchange(delivering_, true);
}

void DurableCall::deliver() {
  while (true) {
    std::vector<Held> batch;
    SharedModel resumed;
    bool ends = false;
    {
      MutexLock lock(mutex_);
      fail_past_lease();
      const auto hidden = std::ranges::find_if(
          held_, [&](const Held& held) REQUIRES(mutex_) { return !may_see(held.event.position); });
      batch.assign(std::make_move_iterator(held_.begin()), std::make_move_iterator(hidden));
      held_.erase(held_.begin(), hidden);
      if (is_paused_ && held_.size() <= kMostHeld / 2) {
        is_paused_ = false;
        resumed = model_;
      }
      ends = batch.empty() && is_over_ && outcome_;
      if (batch.empty() && !ends) {
        delivering_ = false;
        return;
      }
    }
    // Where the sink has no memory for them its call ends, as the scheduler's own would.
    const bool is_told = guarded(
        [&] {
          for (Held& held : batch) {
            held.event.top = held.top;
            tell(held.event);
          }
          if (!ends) sink_->on_step_end();
          return true;
        },
        [] { return false; });
    if (resumed != nullptr) resumed->scheduler->resume(handle_);
    if (ends) return tell_end();  // and nothing more is delivered
    if (!is_told) {
      MutexLock lock(mutex_);
      fail(RequestOutcome::kInternal);
    }
  }
}

bool DurableCall::tell(const TokenEvent& event) {
  return event.position < terms_.from_position || sink_->on_token(event);
}

void DurableCall::hand_over() {
  MutexLock lock(mutex_);
  // One without a name cannot be repeated: it continues while it may.
  if (is_handed_over_ || terms_.id.empty() || !runs_ || failure_) return;
  is_handed_over_ = true;
  model_->scheduler->cancel(handle_);
}

RequestOutcome DurableCall::told_outcome() const {
  if (failure_) return *failure_;
  const bool is_ending = *outcome_ == RequestOutcome::kShutdown && !model_->retired.load();
  const bool is_cut = is_ending || *outcome_ == RequestOutcome::kCancelled;
  return is_cut && !terms_.id.empty() && (is_ending || is_handed_over_) ? RequestOutcome::kMoved
                                                                        : *outcome_;
}

void DurableCall::tell_end() {
  std::optional<SampleResult> result;
  RequestOutcome outcome{};
  {
    MutexLock lock(mutex_);
    outcome = told_outcome();
    // A call that continues elsewhere has not ended.
    if (!failure_ && outcome != RequestOutcome::kMoved) result = std::move(result_);
    model_.reset();
  }
  guarded(
      [&] {
        if (!result) return;
        sink_->on_sample_finish(*result);
        sink_->on_step_end();
      },
      [&] { outcome = RequestOutcome::kInternal; });
  guarded([&] { sink_->on_finish(outcome); }, [] {});
}

bool DurableCall::is_urgent() const {
  MutexLock lock(mutex_);
  return !is_over_ && ((level_ == Durability::kToken && !is_begun_) || lease_ || failing_since_);
}

}  // namespace lintel
