#include "server/generation/sample_run.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <stdexcept>

#include "model/simd/kernels.h"

namespace lintel {
namespace {

bool has_penalties(const SamplingOptions& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

// The `count` most likely values, ties by lower id.
std::span<const TopValue> top_values(const Head& head, std::span<const float> output, int count,
                                     StepContext& step) {
  const std::size_t num_values = static_cast<std::size_t>(head.num_values());
  const std::size_t kept = std::min(static_cast<std::size_t>(count), num_values);
  step.log2_probs.resize(num_values);
  head.log2_probs(output, step.log2_probs);
  step.order.resize(num_values);
  std::iota(step.order.begin(), step.order.end(), 0);
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const double p = step.log2_probs[static_cast<std::size_t>(a)];
    const double q = step.log2_probs[static_cast<std::size_t>(b)];
    return p != q ? p > q : a < b;
  };
  std::partial_sort(step.order.begin(), step.order.begin() + static_cast<std::ptrdiff_t>(kept),
                    step.order.end(), more_likely);
  step.top.clear();
  for (std::size_t i = 0; i < kept; ++i) {
    const std::int32_t token = step.order[i];
    step.top.push_back(
        {token, static_cast<float>(step.log2_probs[static_cast<std::size_t>(token)])});
  }
  return step.top;
}

}  // namespace

// ---- RequestContext

RequestContext::RequestContext(GenerationRequest given_request, const Transformer& transformer,
                               const SequenceState& sequence, std::int64_t most_values)
    : request(std::move(given_request)),
      model(transformer),
      stop_strings(request.stop.strings),
      max_values(most_values),
      first_position(sequence.num_values()),
      is_bytes(model.config().modality == ModalityKind::kBytes),
      uses_penalties(model.head().supports_filters() && has_penalties(request.sampling)) {
  if (first_position == 0 && request.prompt.empty() && !known_value(0)) {
    if (model.config().modality != ModalityKind::kImage) {
      throw std::invalid_argument("nothing to begin the sequence with");
    }
    request.prompt.push_back(model.config().image.start_token);
  }
}

std::optional<std::pair<std::int32_t, ValueSource>> RequestContext::known_value(
    std::int64_t position) const {
  if (position < prompt_end()) {
    const std::int64_t index = position - first_position;
    assert(index >= 0);
    return std::pair(request.prompt[static_cast<std::size_t>(index)], ValueSource::kPrompt);
  }
  const auto found = std::lower_bound(
      request.given.begin(), request.given.end(), position,
      [](const GivenValue& given, std::int64_t wanted) { return given.position < wanted; });
  if (found == request.given.end() || found->position != position) return std::nullopt;
  return std::pair(found->value, ValueSource::kGiven);
}

bool RequestContext::needs_output(std::int64_t position) const {
  const auto known = known_value(position);
  if (!known) return true;
  const bool shown = known->second == ValueSource::kGiven || request.echo_prompt;
  return shown && (request.log2_probs || request.top_log2_probs > 0);
}

// ---- Outlet

void Outlet::emit(TokenEvent event) {
  const bool to_all = event.source == ValueSource::kPrompt;
  const int first = to_all ? 0 : event.sample;
  const int last = to_all ? num_samples_ - 1 : event.sample;
  for (event.sample = first; event.sample <= last; ++event.sample) {
    if (!full) control_.resumed.store(false);
    delivered = true;
    if (!sink_.on_token(event)) full = true;
  }
}

// ---- SampleRun

SampleRun::SampleRun(const RequestContext& context, Outlet& outlet, SequenceState& sequence,
                     int index)
    : context_(context),
      outlet_(outlet),
      sequence_(&sequence),
      index_(index),
      seed_(context.request.seed + static_cast<std::uint64_t>(index)),
      matcher_(context.stop_strings) {
  matcher_.replay(sequence.generated_tail);
}

void SampleRun::begin(StepContext& step) {
  if (step.most_drafts > 0 && context_.request.max_new_tokens > 0) {
    drafter_ = std::make_unique<Drafter>(context_.model.config());
    most_drafts_ = step.most_drafts;
    drafts_.reserve(static_cast<std::size_t>(most_drafts_));
    if (sequence_->pending) drafter_->observe(*sequence_->pending);
  }
  if (context_.is_bytes) sequence_->generated_tail.reserve(kMaxStopStringBytes);
  if (sequence_->num_values() == 0 && !context_.request.prompt.empty()) {
    place(0, context_.request.prompt.front(), ValueSource::kPrompt, {}, step);
  }
}

void SampleRun::fork(const SampleRun& first) {
  if (first.drafter_ != nullptr) {
    drafter_ = std::make_unique<Drafter>(*first.drafter_);
    most_drafts_ = first.most_drafts_;
    drafts_.reserve(static_cast<std::size_t>(most_drafts_));
  }
  own_sequence_.emplace(sequence_->clone());
  sequence_ = &*own_sequence_;
  matcher_.reset();
  matcher_.replay(sequence_->generated_tail);
}

void SampleRun::begin_new_values(StepContext& step) {
  if (sequence_->num_values() == 0 && context_.request.max_new_tokens > 0) {
    const auto known = context_.known_value(0);
    assert(known && known->second == ValueSource::kGiven);
    place(0, known->first, known->second, {}, step);
  }
  check_end(sequence_->num_values());
}

std::int64_t SampleRun::values_left() const {
  const std::int64_t num_values = sequence_->num_values();
  const std::int64_t left = context_.request.max_new_tokens - generated_ +
                            std::max<std::int64_t>(context_.prompt_end() - num_values, 0);
  return context_.max_values == 0 ? left : std::min(left, context_.max_values - num_values);
}

int SampleRun::rows_wanted(int limit) const {
  assert(!finished());
  const std::int64_t num_values = sequence_->num_values();
  const int most = static_cast<int>(std::min<std::int64_t>(values_left(), limit));
  int rows = 0;
  while (rows < most && context_.known_value(num_values + rows)) ++rows;
  return std::min(rows + 1, most);  // one more, to be sampled
}

int SampleRun::prompt_rows_wanted(int limit) const {
  std::int64_t left = context_.prompt_end() - sequence_->num_values();
  if (context_.max_values != 0) {
    left = std::min(left, context_.max_values - sequence_->num_values());
  }
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, limit));
}

bool SampleRun::samples_next() const { return !context_.known_value(sequence_->num_values()); }

bool SampleRun::begin_drafts(int rows) {
  assert(drafts_.empty());
  if (drafter_ == nullptr) return false;
  draft_probability_ = 1.0f;
  draft_position_ = sequence_->num_values() + rows - 1;
  // The last value of all is never fed.
  drafts_end_ =
      std::min(draft_position_ + most_drafts_, sequence_->num_values() + values_left() - 1);
  // Known values before the first sampled one, which the step feeds.
  for (std::int64_t known = sequence_->num_values(); known < draft_position_; ++known) {
    if (!drafter_->assume(context_.known_value(known)->first)) return false;
  }
  return next_draft();
}

bool SampleRun::next_draft() {
  if (draft_position_ >= drafts_end_) return false;
  const auto known = context_.known_value(draft_position_);
  draft_.is_known = known.has_value();
  draft_.guess = known ? Drafter::Guess{.value = known->first} : drafter_->guess();
  if (!known) draft_probability_ *= draft_.guess.probability;
  return true;
}

bool SampleRun::take_draft() {
  drafts_.push_back(draft_);
  ++draft_position_;
  return drafter_->assume(draft_.guess.value) && next_draft();
}

bool SampleRun::is_right(const Draft& draft, StepContext& step) {
  if (draft.is_known) return true;
  const bool right = *sequence_->pending == draft.guess.value;
  drafter_->learn(draft.guess, right);
  if (right) {
    ++accepted_;
    ++step.accepted_tokens;
  }
  return right;
}

int SampleRun::append_rows(int count, std::vector<StepRow>& rows) const {
  const int first_draft = count - static_cast<int>(drafts_.size());
  int outputs = 0;
  std::int32_t token = *sequence_->pending;
  std::int64_t next_position = sequence_->num_values();
  for (int i = 0; i < count; ++i, ++next_position) {
    const bool wants_output = context_.needs_output(next_position);
    rows.push_back({token, sequence_, wants_output, /*is_draft=*/i >= first_draft});
    outputs += wants_output ? 1 : 0;
    if (i + 1 == count) break;
    token = i + 1 < first_draft
                ? context_.known_value(next_position)->first
                : drafts_[static_cast<std::size_t>(i + 1 - first_draft)].guess.value;
  }
  return outputs;
}

bool SampleRun::absorb(int count, OutputRows outputs, StepContext& step) {
  // The step has fed `count` values, the pending one first.
  sequence_->pending.reset();
  const std::int64_t first_position = sequence_->position() - count + 1;
  const int first_draft = count - static_cast<int>(drafts_.size());
  const auto drafted =
      std::ranges::count_if(drafts_, [](const Draft& draft) { return !draft.is_known; });
  drafted_ += drafted;
  step.drafted_tokens += static_cast<std::uint64_t>(drafted);
  int kept = 0;  // rows that stay fed
  for (bool goes_on = true; goes_on;) {
    const std::int64_t position = first_position + kept++;
    std::span<const float> output;
    if (context_.needs_output(position)) {
      output = outputs.next();
      if (!all_finite(output)) return false;
    }
    if (const auto known = context_.known_value(position)) {
      place(position, known->first, known->second, output, step);
    } else {
      const std::span<const std::uint32_t> counts =
          context_.uses_penalties ? std::span<const std::uint32_t>(sequence_->counts)
                                  : std::span<const std::uint32_t>();
      const std::int32_t value = context_.model.head().sample(
          output, context_.request.sampling, counts, DrawSource{seed_, position}, step.sampling);
      place(position, value, ValueSource::kSampled, output, step);
    }
    goes_on = kept < count && !finished() &&
              (kept < first_draft ||
               is_right(drafts_[static_cast<std::size_t>(kept - first_draft)], step));
  }
  sequence_->take_back(count - kept);
  drafts_.clear();
  return true;
}

void SampleRun::place(std::int64_t position, std::int32_t value, ValueSource source,
                      std::span<const float> output, StepContext& step) {
  assert(!finished());
  const GenerationRequest& request = context_.request;
  sequence_->pending = value;
  if (drafter_ != nullptr) drafter_->observe(value);
  if (!sequence_->counts.empty()) ++sequence_->counts[static_cast<std::size_t>(value)];

  TokenEvent event;
  event.sample = index_;
  event.position = position;
  event.token = value;
  event.source = source;
  const bool shown = source != ValueSource::kPrompt || request.echo_prompt;
  if (shown && !output.empty()) {
    const Head& head = context_.model.head();
    if (request.log2_probs) event.log2_prob = static_cast<float>(head.log2_prob(output, value));
    if (request.top_log2_probs > 0) {
      event.top = top_values(head, output, request.top_log2_probs, step);
    }
  }

  if (source == ValueSource::kPrompt) {
    ++step.prompt_tokens;
  } else {
    ++step.generated_tokens;
    ++generated_;
    if (first_new_) {
      step.metrics.between_tokens.observe(step.now - last_new_);
    } else {
      first_new_ = step.now;
    }
    last_new_ = step.now;
  }
  if (source == ValueSource::kSampled) {
    place_sampled(event);
  } else {  // not generated text: no match reaches across it
    if (source == ValueSource::kGiven) ++given_;
    flush_held(0);
    matcher_.reset();
    sequence_->generated_tail.clear();
    if (shown) outlet_.emit(event);
  }
  check_end(position + 1);
}

void SampleRun::place_sampled(const TokenEvent& event) {
  const StopOptions& stop = context_.request.stop;
  std::optional<std::size_t> match;
  if (context_.is_bytes) {
    const char byte = static_cast<char>(event.token);
    match = matcher_.push(byte);
    std::string& tail = sequence_->generated_tail;
    if (tail.size() >= kMaxStopStringBytes - 1)
      tail.erase(0, tail.size() - kMaxStopStringBytes + 2);
    tail.push_back(byte);
  }

  if (std::find(stop.tokens.begin(), stop.tokens.end(), event.token) != stop.tokens.end()) {
    reason_ = FinishReason::kStopToken;
    flush_held(0);
    if (stop.include_in_output) outlet_.emit(event);
  } else if (context_.stop_strings.empty() || stop.include_in_output) {
    outlet_.emit(event);
  } else {
    held_.push_back({event, {event.top.begin(), event.top.end()}});
    if (!match) flush_held(matcher_.undecided());
  }
  if (!match || finished()) return;

  reason_ = FinishReason::kStopString;
  stop_string_ = context_.stop_strings[*match];
  if (!stop.include_in_output) {
    // The match may begin in an earlier call, whose output is out already.
    const std::size_t excluded = std::min(stop_string_.size(), held_.size());
    flush_held(excluded);
    held_.clear();
  }
  sequence_->generated_tail.clear();  // the next match begins after this one
}

void SampleRun::flush_held(std::size_t keep) {
  if (held_.size() <= keep) return;
  const auto end = held_.end() - static_cast<std::ptrdiff_t>(keep);
  for (auto held = held_.begin(); held != end; ++held) {
    held->event.top = held->top;
    outlet_.emit(held->event);
  }
  held_.erase(held_.begin(), end);
}

void SampleRun::check_end(std::int64_t num_values) {
  if (finished()) return;
  if (context_.max_values != 0 && num_values >= context_.max_values) {
    finish(FinishReason::kEndOfSequence);
  } else if (num_values >= context_.prompt_end() && generated_ >= context_.request.max_new_tokens) {
    finish(FinishReason::kLength);
  }
}

void SampleRun::finish(FinishReason reason) {
  if (finished()) return;
  reason_ = reason;
  flush_held(0);
}

SampleResult SampleRun::result(TimePoint submitted, std::optional<TimePoint> started,
                               TimePoint now) const {
  SampleResult result;
  result.sample = index_;
  result.reason = *reason_;
  result.reused_tokens = context_.first_position;
  result.prompt_tokens =
      std::min(sequence_->num_values(), context_.prompt_end()) - context_.first_position;
  result.generated_tokens = generated_;
  result.given_tokens = given_;
  result.drafted_tokens = drafted_;
  result.accepted_tokens = accepted_;
  result.seed = seed_;
  result.queued = started.value_or(now) - submitted;
  if (started) result.prompt = first_new_.value_or(now) - *started;
  if (first_new_) result.generation = last_new_ - *first_new_;
  result.stop_string = stop_string_;
  result.position = sequence_->num_values();
  return result;
}

}  // namespace lintel
