// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequence_group.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <span>
#include <utility>

#include "server/core/threads.h"
#include "server/sessions/session_history.h"

namespace lintel {

namespace {

// Bytes in addition to the tokens: the request's and its sink's own objects, and those of a sample.
constexpr std::size_t kRequestBytes = 4096;

std::size_t bytes_held_by(const GenerationRequest& request) {
  std::size_t bytes = kRequestBytes + request.held_bytes + request.caller.size();
  bytes += request.replay.capacity() * sizeof(request.replay.front());
  bytes += request.recent.capacity() * sizeof(request.recent.front());
  bytes += request.prompt.capacity() * sizeof(request.prompt.front());
  bytes += request.given.capacity() * sizeof(request.given.front());
  bytes += request.drawn.capacity() * sizeof(request.drawn.front());
  bytes += request.stop.tokens.capacity() * sizeof(request.stop.tokens.front());
  for (const std::string& text : request.stop.strings) bytes += sizeof(text) + text.capacity();
  if (request.constraint) {
    bytes += request.constraint->grammar->bytes();
    const auto& calls = request.constraint->calls;
    if (calls && calls->grammar != request.constraint->grammar) bytes += calls->grammar->bytes();
  }
  if (request.reasoning) {
    bytes += request.reasoning->end.capacity() * sizeof(request.reasoning->end.front());
  }
  bytes += request.sampling.logit_bias.size() * sizeof(request.sampling.logit_bias.front());
  return bytes + static_cast<std::size_t>(request.num_sequences()) * sizeof(Sequence);
}

// The number of tokens that a step has given all requests so far.
std::uint64_t values_of(const StepContext& step) {
  return step.prompt_tokens + step.generated_tokens;
}

}  // namespace

SequenceGroup::SequenceGroup(GenerationRequest request, SessionLease lease,
                             std::shared_ptr<TokenSink> sink,
                             std::shared_ptr<RequestControl> control, const Transformer& model,
                             TimePoint submitted, SchedulerMetrics& counters, PrefixCache* prefixes,
                             PrefillCoalescer* readings)
    : metrics_(counters),
      in_flight_(counters),
      lease_(std::move(lease)),
      sink_(std::move(sink)),
      control_(std::move(control)),
      model_(model),
      request_(checked_request(std::move(request), model)),  // now, also where it waits
      outlet_(*sink_, *control_, request_.num_samples),
      prefixes_(prefixes),
      readings_(readings),
      held_bytes_(bytes_held_by(request_)),
      submitted_(submitted) {
  assert(request_.num_sequences() >= 1);
  if (lease_.is_admitted()) make_samples();
}

void SequenceGroup::make_samples() {
  // A one-shot call's sequence that has a window is as long as it is asked to be.
  const bool is_endless = request_.window > 0 && lease_.session_id().empty();
  context_.emplace(std::move(request_), model_, lease_.sequence(),
                   is_endless ? 0 : lease_.max_tokens());
  const int num_sequences = request().num_sequences();
  samples_.reserve(static_cast<std::size_t>(num_sequences));
  const auto& turn = request().turn;
  const bool may_keep_end = turn && turn->keeps_end && num_sequences == 1;
  if (may_keep_end && prefixes_ != nullptr && lease_.history() == nullptr) turn_log_.emplace();
  TokenLog* const log = turn_log_ ? &*turn_log_ : static_cast<TokenLog*>(lease_.history());
  for (int i = 0; i < num_sequences; ++i) {
    samples_.emplace_back(*context_, outlet_, lease_.sequence(), i, i == 0 ? log : nullptr);
  }
  reported_.resize(samples_.size(), false);
}

SequenceGroup::~SequenceGroup() { end(RequestOutcome::kInternal, submitted_); }

template <typename Body>
void SequenceGroup::attempt(Body&& body) noexcept {
  if (failure_) return;
  // A sink's own exception, no memory, or its grammar: this request fails alone.
  catch_exceptions(body, [this] {
    try {
      throw;
    } catch (const GrammarFailure& failure) {
      failure_ = failure.outcome;
    } catch (...) {
      failure_ = RequestOutcome::kInternal;
    }
  });
}

int SequenceGroup::slots() const {
  if (!context_) return request_.num_sequences();
  return static_cast<int>(std::count_if(samples_.begin(), samples_.end(),
                                        [](const Sequence& s) { return !s.finished(); }));
}

std::optional<TimePoint> SequenceGroup::end_of_wait() const {
  if (!lease_.waits_for_memory()) return std::nullopt;
  return submitted_ + lease_.most_wait();
}

std::optional<TimePoint> SequenceGroup::deadline() const {
  const std::optional<TimePoint> own = request().deadline;
  const std::optional<TimePoint> wait = end_of_wait();
  return wait && (!own || *wait < *own) ? wait : own;
}

std::optional<RequestOutcome> SequenceGroup::lost(TimePoint now) const {
  if (lost_) return lost_;
  if (control_->cancelled.load()) return RequestOutcome::kCancelled;
  if (const auto time = deadline(); time && now >= *time) {
    // The one that came first is why it ends.
    return time == request().deadline ? RequestOutcome::kDeadline : RequestOutcome::kMemory;
  }
  if (lease_.adapter_ended()) return RequestOutcome::kAdapterEnded;
  return std::nullopt;
}

bool SequenceGroup::start(StepContext& step) {
  // The step may have looked at its clock before this request was submitted.
  step.now = std::max(step.now, submitted_);
  has_rows_since_ = step.now;
  if (!started_) {
    started_ = step.now;
    step.metrics.queued.observe(step.now - submitted_);
  }
  if (!context_) begin_admitted();
  return has_begun_ || begin(step);
}

void SequenceGroup::begin_admitted() noexcept {
  attempt([&] {
    try {
      lease_.admit();
      if (request_.begin_with) std::exchange(request_.begin_with, {})(lease_.sequence(), request_);
    } catch (const std::bad_alloc&) {  // the budget promises more than the machine has
      failure_ = RequestOutcome::kMemory;
      return;
    }
    make_samples();
  });
}

void SequenceGroup::yield() {
  for (Sequence& sample : samples_) sample.settle();
}

bool SequenceGroup::begin(StepContext& step) {
  const std::uint64_t before = values_of(step);
  attempt([&] {
    if (!has_place_) {
      if (waits_for_prefix(step.now)) return;
      has_place_ = true;
      begin_behind_prefix(step.now);
    }
    has_begun_ = samples_.front().begin(step);
    if (has_begun_) return fork_when_prompt_read(step);
    if (std::exchange(outlet_.delivered, false)) sink_->on_step_end();
  });
  if (!failure_ && !has_begun_) return false;
  unpaid_tokens_ += static_cast<std::int64_t>(values_of(step) - before);
  pay(step.now);
  return failure_ || slots() == 0 || !throttled_until_;
}

bool SequenceGroup::takes_prefix() const {
  const GenerationRequest& request = this->request();
  // A request for the prompt's tokens, with what the model says of them, has it read; and where
  // the prompt fills a window little of it is read, with a state that begins in its midst.
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  const bool fills_window = request.window > 0 && prompt_size >= request.window;
  if (!request.caches_prefix) return false;
  if (prefixes_ == nullptr || request.echo_prompt || fills_window) return false;
  // Only the session of a sequence knows what it has seen before.
  return context_->first_position == 0 &&
         prefixes_->takes(model_, request.prompt.size(), request.turn.has_value());
}

bool SequenceGroup::waits_for_prefix(TimePoint now) {
  wait_ = {};
  if (readings_ == nullptr || !takes_prefix() || (wait_until_ && now >= *wait_until_)) return false;
  const std::vector<std::int32_t>& prompt = request().prompt;
  if (!prefixes_->may_keep(model_, static_cast<std::int64_t>(prompt.size()))) return false;
  const std::int64_t cached = prefixes_->look_up(reader(), prompt);
  wait_ = readings_->wait_for(prefix_key(), prompt, cached, prefixes_->least_tokens(), now);
  if (wait_.reading == nullptr) return false;
  if (!wait_until_) wait_until_ = now + wait_.longest;
  return true;
}

void SequenceGroup::begin_behind_prefix(TimePoint now) {
  const GenerationRequest& request = this->request();
  if (!takes_prefix()) {
    if (prefixes_ != nullptr && request.turn) prefixes_->count_read(request.prompt.size());
    return;
  }
  PrefixCache::Wanted wanted{.at = request.cache_prefix_tokens};
  if (request.turn) {
    wanted = {wanted.at, /*is_turn=*/wanted.at > 0, request.turn->call, request.turn->is_ahead};
  }
  const PrefixCache::Beginning beginning =
      prefixes_->begin(reader(), request.prompt, wanted, lease_.sequence());
  if (wait_until_ && beginning.cached > 0) prefixes_->count_join();
  if (beginning.keep_at > 0) {
    keep_at_.push_back({beginning.keep_at, wanted.is_turn ? KeptFor::kTurn : KeptFor::kPrefix});
  }
  if (beginning.keep_call_at > 0) keep_at_.push_back({beginning.keep_call_at, KeptFor::kCall});
  samples_.front().begin_behind(beginning.cached, next_kept());
  control_->cached_tokens.store(beginning.cached);
  const std::int64_t left = static_cast<std::int64_t>(request.prompt.size()) - beginning.cached;
  if (readings_ == nullptr || left < prefixes_->least_tokens()) return;
  reading_ = readings_->begin(prefix_key(), request.prompt, beginning.cached, now);
}

void SequenceGroup::keep_prefix(TimePoint now) {
  if (keep_at_.empty() && reading_ == nullptr) return;
  const std::vector<std::int32_t>& prompt = request().prompt;
  const std::int64_t at = lease_.sequence().next_position();
  const bool is_waited_for = reading_ != nullptr && readings_->next_wanted(*reading_) == at;
  const bool is_own = at == next_kept();
  if (is_own || is_waited_for) {
    prefixes_->keep(reader(), std::span(prompt).first(static_cast<std::size_t>(at)),
                    lease_.sequence(), is_own ? keep_at_.front().kept_for : KeptFor::kPrefix);
  }
  while (!keep_at_.empty() && at >= next_kept()) keep_at_.erase(keep_at_.begin());
  samples_.front().stop_at(next_kept());
  if (reading_ == nullptr) return;
  readings_->advance(*reading_, at);
  if (at >= static_cast<std::int64_t>(prompt.size())) end_reading(now);
}

void SequenceGroup::keep_end() {
  SequenceState& sequence = lease_.sequence();
  const std::vector<std::int32_t>& tokens = turn_log_->tokens;
  const bool is_whole = sequence.next_position() == static_cast<std::int64_t>(tokens.size());
  if (!is_whole || sequence.origin != 0 || !takes_prefix()) return;
  sequence.generated_tail.clear();  // as reading these tokens leaves it
  prefixes_->keep(reader(), tokens, sequence, KeptFor::kEnd);
}

void SequenceGroup::stop_where_wanted() {
  if (reading_ == nullptr) return;
  const std::int64_t wanted = readings_->next_wanted(*reading_);
  const std::int64_t own = next_kept();
  samples_.front().stop_at(own > 0 && (wanted == 0 || own < wanted) ? own : wanted);
}

void SequenceGroup::end_reading(TimePoint now) {
  if (reading_ != nullptr) readings_->end(*std::exchange(reading_, nullptr), now);
}

void SequenceGroup::pay(TimePoint now) {
  TokenAllowance* const allowance = request().allowance.get();
  if (allowance == nullptr) return;
  attempt([&] {
    const Duration pause = allowance->pay(std::exchange(unpaid_tokens_, 0));
    if (pause > Duration::zero()) throttled_until_ = now + pause;
  });
}

void SequenceGroup::fork_when_prompt_read(StepContext& step) {
  Sequence& first = samples_.front();
  if (forked_ || !(first.prompt_read() || first.finished())) return;
  forked_ = true;
  for (std::size_t i = 1; i < samples_.size(); ++i) samples_[i].fork(first);
  if (request().uses_particles()) particles_.emplace(*context_, samples_, outlet_);
  for (Sequence& sample : samples_) sample.begin_new_tokens(step);
}

void SequenceGroup::prepare_masks(StepContext& step) {
  if (!context_ || !context_->constraint) return;
  attempt([&] {
    if (!forked_ && samples_.size() > 1) return;
    for (Sequence& sample : samples_) {
      if (!sample.finished()) sample.prepare_mask(step);
    }
  });
}

void SequenceGroup::propose(int max_rows, std::vector<BatchSlice>& runs) {
  if (failure_) return;
  stop_where_wanted();
  const bool shares_prompt = !forked_ && samples_.size() > 1;
  for (Sequence& sample : samples_) {
    if (sample.finished() || sample.waits()) continue;
    BatchSlice run;
    run.request = this;
    run.caller = turn_.caller();
    run.sample = &sample;
    run.drafts = &sample;
    run.read = sample.num_read();
    run.is_decoding = forked_;
    run.samples_next = sample.samples_next();
    run.wanted = shares_prompt ? sample.prompt_rows_wanted(max_rows) : sample.rows_wanted(max_rows);
    if (context_->constraint && run.wanted == 0) {  // it waits for its mask
      metrics_.mask_waits.fetch_add(1, std::memory_order_relaxed);
      sample.settle();
      continue;
    }
    runs.push_back(run);
    if (shares_prompt) break;  // the first reads it for all
  }
}

void SequenceGroup::absorb(const BatchSlice& run, MatrixView<const float> outputs,
                           StepContext& step) {
  const std::uint64_t before = values_of(step);
  attempt([&] {
    const bool finite = run.sample->absorb(run.rows, {outputs, run.first_output}, step);
    if (!finite) {
      failure_ = RequestOutcome::kNonFinite;
      return;
    }
    fork_when_prompt_read(step);
  });
  unpaid_tokens_ += static_cast<std::int64_t>(values_of(step) - before);
  if (!answered_ && run.sample->has_new_tokens()) {
    answered_ = true;
    step.metrics.first_token.observe(step.now - submitted_);
  }
}

SequenceGroup::Status SequenceGroup::end_step(StepContext& step) {
  pay(step.now);
  if (particles_) attempt([&] { particles_->gather(); });
  const bool is_last = slots() == 0;
  if (!failure_) lease_.keep_checkpoint();
  if (!failure_) keep_prefix(step.now);
  if (!failure_) report_finished(step.now, is_last);
  attempt([&] {
    if (std::exchange(outlet_.delivered, false)) sink_->on_step_end();
  });
  if (failure_ || is_last) {
    end(failure_.value_or(RequestOutcome::kDone), step.now);
    return Status::kEnded;
  }
  if (!outlet_.full && !throttled_until_) return Status::kRunning;
  for (Sequence& sample : samples_) sample.settle();
  return Status::kPaused;
}

void SequenceGroup::report_finished(TimePoint now, bool is_last) {
  attempt([&] {
    const std::vector<SampleResult> results = take_results(now, is_last);
    if (is_last) release();
    for (const SampleResult& result : results) {
      outlet_.delivered = true;
      sink_->on_sample_finish(result);
    }
  });
}

void SequenceGroup::report_unbegun(RequestOutcome outcome, TimePoint now) {
  attempt([&] {
    release();
    for (int i = 0; i < request_.num_samples; ++i) {
      SampleResult result;
      result.sample = i;
      result.reason =
          outcome == RequestOutcome::kDeadline ? FinishReason::kDeadline : FinishReason::kCancelled;
      result.seed = request_.seed + static_cast<std::uint64_t>(i);
      result.queued = now - submitted_;
      outlet_.delivered = true;
      sink_->on_sample_finish(result);
    }
  });
}

std::vector<SampleResult> SequenceGroup::take_results(TimePoint now, bool is_last) {
  std::vector<SampleResult> results;
  if (request().uses_particles()) {
    if (!is_last) return results;
    SampleResult result = samples_.front().result(submitted_, started_, now);
    if (particles_) particles_->complete(result);
    for (; result.sample < request().num_samples; ++result.sample) results.push_back(result);
    return results;
  }
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (reported_[i] || !samples_[i].finished()) continue;
    reported_[i] = true;
    results.push_back(samples_[i].result(submitted_, started_, now));
    if (const SessionHistory* history = lease_.history()) {
      results.back().digest = to_hex(history->extent().digest);
      results.back().numerics_changed = request().numerics_changed;
    }
    if (turn_log_ && results.back().reason == FinishReason::kStopToken) keep_end();
    samples_[i].release();
  }
  return results;
}

bool SequenceGroup::take_resume(TimePoint now) {
  if (wait_.reading != nullptr && !wait_.reading->has_passed(wait_.tokens) && now < *wait_until_) {
    return false;
  }
  if (control_->resumed.exchange(false)) outlet_.full = false;
  if (throttled_until_ && now >= *throttled_until_) {
    throttled_until_.reset();
    pay(now);  // others may have used what came in meanwhile
  }
  // A failure is for end_step to tell.
  return failure_ || (!outlet_.full && !throttled_until_);
}

void SequenceGroup::release() {
  end_reading(TimePoint());
  for (Sequence& sample : samples_) sample.release();
  particles_.reset();
  lease_ = SessionLease();
}

void SequenceGroup::refuse() {
  ended_ = true;
  release();
  in_flight_.finish();
}

void SequenceGroup::end(RequestOutcome outcome, TimePoint now) {
  if (ended_) return;
  ended_ = true;
  now = std::max(now, submitted_);  // as in start()
  if (outcome == RequestOutcome::kCancelled || outcome == RequestOutcome::kDeadline ||
      outcome == RequestOutcome::kShutdown || outcome == RequestOutcome::kAdapterEnded) {
    attempt([&] {
      for (Sequence& sample : samples_) {
        sample.finish(outcome == RequestOutcome::kDeadline ? FinishReason::kDeadline
                                                           : FinishReason::kCancelled);
      }
    });
    if (context_) {
      report_finished(now, /*is_last=*/true);
    } else {
      report_unbegun(outcome, now);
    }
    attempt([&] {
      if (std::exchange(outlet_.delivered, false)) sink_->on_step_end();
    });
    if (failure_) outcome = *failure_;
  }
  const bool in_doubt =
      outcome == RequestOutcome::kNonFinite || outcome == RequestOutcome::kInternal ||
      outcome == RequestOutcome::kGrammarWork || outcome == RequestOutcome::kNoToken;
  if (lease_ && in_doubt) lease_.discard();
  release();
  metrics_.count_end(outcome, now - submitted_);
  in_flight_.finish();
  catch_exceptions([&] { sink_->on_finish(outcome); }, [] {});  // it was called, even if it throws
}

}  // namespace lintel
