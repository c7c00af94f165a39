// SPDX-License-Identifier: Apache-2.0
#include "server/engine/sequence.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <functional>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "model/core/kernels.h"
#include "server/engine/row_planner.h"

namespace lintel {

void StopCriteria::replay(const std::string& tail) {
  matcher_.reset();
  matcher_.replay(tail);
}

namespace {

// Appends within the memory that the tail has.
void extend_tail(std::string_view bytes, std::string& tail) {
  constexpr std::size_t kMost = kMaxStopStringBytes - 1;
  if (bytes.size() > kMost) bytes.remove_prefix(bytes.size() - kMost);
  if (tail.size() + bytes.size() > kMost) tail.erase(0, tail.size() + bytes.size() - kMost);
  tail += bytes;
}

}  // namespace

std::optional<FinishReason> StopCriteria::pass(TokenEvent event, bool may_match,
                                               std::string& tail) {
  const StopOptions& stop = context_.request.stop;
  const std::string_view bytes = context_.bytes_of(event.token);
  std::optional<std::size_t> match;
  std::size_t matched = 0;  // bytes of the token up to the end of the match
  while (!match && matched < bytes.size()) {
    match = matcher_.push(bytes[matched++]);
    if (!may_match) match.reset();
  }
  extend_tail(bytes, tail);

  if (std::find(stop.tokens.begin(), stop.tokens.end(), event.token) != stop.tokens.end()) {
    flush();
    if (!stop.include_in_output) event.cut_bytes = static_cast<std::int32_t>(bytes.size());
    if (stop.include_in_output || stop.reports_token) {
      emit(event);
    } else {
      omitted_.push_back(event.token);
    }
    return FinishReason::kStopToken;
  }
  const std::size_t after = bytes.size() - matched;  // the match
  if (stop.include_in_output && match) event.cut_bytes = static_cast<std::int32_t>(after);
  if (context_.stop_strings.empty() || stop.include_in_output) {
    emit(event);
  } else {
    held_.emplace_back(event);
    if (!match) flush(matcher_.undecided());
  }
  if (!match) return std::nullopt;

  stop_string_ = context_.stop_strings[*match];
  drop(stop_string_.size() + after);
  tail.clear();  // the next match begins after this one
  return FinishReason::kStopString;
}

void StopCriteria::interrupt(std::string& tail) {
  flush();
  matcher_.reset();
  tail.clear();
}

void StopCriteria::flush(std::size_t keep) {
  auto end = held_.end();
  for (std::size_t bytes = 0; end != held_.begin() && bytes < keep;) {
    bytes += context_.bytes_of((--end)->token()).size();
  }
  for (auto held = held_.begin(); held != end; ++held) emit(held->event());
  held_.erase(held_.begin(), end);
}

void StopCriteria::drop(std::size_t bytes) {
  // The match may begin in an earlier call, whose output is out already.
  auto first = held_.end();  // of the tokens that are dropped whole
  while (first != held_.begin() && bytes > 0) {
    HeldToken& held = *std::prev(first);
    const std::size_t size = context_.bytes_of(held.token()).size();
    if (size > bytes) {
      held.cut(bytes);
      break;
    }
    bytes -= size;
    --first;
  }
  for (auto held = first; held != held_.end(); ++held) omitted_.push_back(held->token());
  held_.erase(first, held_.end());
  flush();
}

void StopCriteria::emit(const TokenEvent& event) {
  cut_bytes_ = event.cut_bytes;
  outlet_.emit(event);
}

namespace {

// The `count` most likely tokens, ties by lower id.
std::span<const TopToken> top_tokens(const Head& head, std::span<const float> output, int count,
                                     StepContext& step) {
  const std::size_t vocab_size = static_cast<std::size_t>(head.vocab_size());
  const std::size_t kept = std::min(static_cast<std::size_t>(count), vocab_size);
  step.log2_probs.resize(vocab_size);
  head.log2_probs(output, step.log2_probs);
  step.order.resize(vocab_size);
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

Sequence::Sequence(const RequestContext& context, SampleEvents& outlet, SequenceState& sequence,
                   int index, TokenLog* log)
    : context_(context),
      outlet_(outlet),
      sequence_(&sequence),
      index_(index),
      log_(log),
      seed_(context.request.seed + static_cast<std::uint64_t>(index)),
      num_tokens_(context.first_position),
      drafts_(context),
      stops_(context, outlet) {
  if (context.constraint) constraint_.emplace(*context.constraint);
  if (context.request.reasoning) reasoning_.emplace(*context.request.reasoning, *context.tokenizer);
  stops_.replay(sequence.generated_tail);
}

void Sequence::begin_behind(std::int64_t cached, std::int64_t keep_at) {
  num_tokens_ += cached;
  cached_ = cached;
  keep_at_ = keep_at;
}

void Sequence::pass_cached() {
  for (std::int64_t i = 0; i < cached_; ++i) {
    const std::int32_t token = context_.request.prompt[static_cast<std::size_t>(i)];
    drafts_.observe(token);
    if (!recent_.empty()) recent_.put(context_.first_position + i, token);
    if (!recent_counts_.empty()) recent_counts_.put(token);
    if (log_ != nullptr) log_->append(token, TokenSource::kPrompt);
  }
}

bool Sequence::begin(StepContext& step) {
  if (!std::exchange(has_begun_, true)) begin_first(step);
  if (!skip(step)) return false;
  if (sequence_->next_position() == 0 && context_.prompt_end() > 0) {
    const auto first = known(0);
    place({0, first->first, first->second}, {}, step);
  }
  return true;
}

void Sequence::begin_first(StepContext& step) {
  const GenerationRequest& request = context_.request;
  // Particles are weighed between what is known and what is drawn, which no draft may pass.
  if (step.most_drafts > 0 && request.max_new_tokens > 0 && !request.uses_particles()) {
    drafts_.begin(step.most_drafts, cached_ > 0 ? std::nullopt : sequence_->pending);
    for (const std::int32_t token : request.replay) drafts_.observe(token);
  }
  begin_penalty_window();
  if (request.window > 0) recent_.begin(request.window);
  pass_cached();
  if (context_.tokenizer != nullptr) sequence_->generated_tail.reserve(kMaxStopStringBytes);
  if (request.window > 0) begin_window(step);
}

void Sequence::fork(const Sequence& first) {
  drafts_.fork(first.drafts_);
  num_tokens_ = first.num_tokens_;
  read_ = first.read_;
  cached_ = first.cached_;
  skipped_ = first.skipped_;
  recent_ = first.recent_;
  recent_counts_ = first.recent_counts_;
  replayed_ = first.replayed_;
  own_sequence_.emplace(sequence_->clone());
  sequence_ = &*own_sequence_;
  stops_.replay(sequence_->generated_tail);
}

void Sequence::become(const Sequence& other) {
  sequence_->assign(*other.sequence_);
  recent_counts_ = other.recent_counts_;
}

void Sequence::begin_new_tokens(StepContext& step) {
  if (num_tokens_ == 0 && context_.request.max_new_tokens > 0) {
    const auto first = known(0);
    assert(first && first->second == TokenSource::kGiven);
    place({0, first->first, first->second}, {}, step);
  }
  check_end(num_tokens_);
}

std::optional<std::pair<std::int32_t, TokenSource>> Sequence::known(std::int64_t position) const {
  if (position < num_tokens_) return std::pair(past(position), TokenSource::kPrompt);
  return context_.known_token(position);
}

std::int32_t Sequence::past(std::int64_t position) const {
  const std::int64_t index = position - context_.replay_begin();
  const std::vector<std::int32_t>& replay = context_.request.replay;
  return index >= 0 && index < static_cast<std::int64_t>(replay.size())
             ? replay[static_cast<std::size_t>(index)]
             : recent_.at(position);
}

void Sequence::begin_penalty_window() {
  const GenerationRequest& request = context_.request;
  if (!context_.uses_penalties || request.sampling.penalty_window == 0) return;
  recent_counts_.begin(request.sampling.penalty_window, context_.model.config().vocab_size);
  for (const std::int32_t token : request.recent) recent_counts_.put(token);
  for (const std::int32_t token : request.replay) recent_counts_.put(token);
}

std::span<const std::uint32_t> Sequence::penalty_counts(SamplingScratch& scratch) const {
  if (!context_.uses_penalties) return {};
  return recent_counts_.empty() ? sequence_->counts.all(scratch.counts) : recent_counts_.counts();
}

void Sequence::begin_window(StepContext& step) {
  const GenerationRequest& request = context_.request;
  std::int64_t position =
      context_.replay_begin() - static_cast<std::int64_t>(request.recent.size());
  for (const std::int32_t token : request.recent) recent_.put(position++, token);
  for (const std::int32_t token : request.replay) recent_.put(position++, token);
  const std::int64_t end =
      context_.scores_prompt() ? num_tokens_ : std::max(num_tokens_, context_.prompt_end());
  const std::int64_t origin = context_.origin_at(end);
  if (origin == sequence_->origin) return;
  if (origin < num_tokens_) {
    // The window is full; or the session was rewound to before its last reset.
    begin_anew(origin, step);
  } else {
    if (origin > num_tokens_) stops_.interrupt(sequence_->generated_tail);  // as a prompt does
    skip_end_ = origin;
  }
}

bool Sequence::skip(StepContext& step) {
  if (!skip_end_) return true;
  const GenerationRequest& request = context_.request;
  const std::int64_t origin = *skip_end_;
  const std::int64_t remembered = origin - request.window;  // from there on, for drafts
  while (num_tokens_ < origin) {
    if (outlet_.full) return false;
    TokenEvent event;
    event.sample = index_;
    event.position = num_tokens_;
    event.token = known(num_tokens_)->first;
    event.source = TokenSource::kPrompt;
    ++num_tokens_;
    ++skipped_;
    if (event.position >= remembered) drafts_.observe(event.token);
    if (!recent_counts_.empty()) recent_counts_.put(event.token);
    if (log_ != nullptr) log_->append(event.token, TokenSource::kPrompt);
    if (request.echo_prompt) outlet_.emit(event);
  }
  skip_end_.reset();
  TokenCounts counts = std::move(sequence_->counts);
  std::string tail = std::move(sequence_->generated_tail);
  if (!counts.empty()) {
    const std::int64_t skipped_from = origin - skipped_;
    for (std::int64_t i = sequence_->next_position(); i < skipped_from; ++i) {
      counts.add(past(i));  // which the state lacks
    }
    for (std::int64_t i = skipped_from; i < origin; ++i) {
      counts.add(context_.known_token(i)->first);
    }
  }
  sequence_->reset();
  sequence_->counts = std::move(counts);
  sequence_->generated_tail = std::move(tail);
  sequence_->origin = origin;
  const auto next = known(origin);
  place({origin, next->first, next->second}, {}, step);
  return true;
}

void Sequence::begin_anew(std::int64_t origin, StepContext& step) {
  TokenCounts counts = std::move(sequence_->counts);
  std::string tail = std::move(sequence_->generated_tail);
  const std::int64_t next = sequence_->next_position();
  if (!counts.empty()) {  // as those before `origin` leave them
    for (std::int64_t i = next; i < origin; ++i) counts.add(past(i));
    for (std::int64_t i = origin; i < next; ++i) counts.remove(past(i));
  }
  sequence_->reset();
  sequence_->counts = std::move(counts);
  sequence_->generated_tail = std::move(tail);
  sequence_->origin = origin;
  place({origin, past(origin), TokenSource::kPrompt}, {}, step);
}

std::int64_t Sequence::tokens_left() const {
  const std::int64_t lags = num_tokens_ - sequence_->next_position();
  return bounded(lags + std::max<std::int64_t>(context_.prompt_end() - num_tokens_, 0) +
                 context_.request.max_new_tokens - generated_);
}

std::int64_t Sequence::bounded(std::int64_t left) const {
  const std::int64_t next = sequence_->next_position();
  if (next < keep_at_) left = std::min(left, keep_at_ - next);
  if (context_.max_tokens != 0) {
    left = std::min(left, context_.max_tokens - next);
  }
  const std::int64_t window = context_.request.window;
  return window == 0 ? left : std::min(left, window - sequence_->num_tokens());
}

int Sequence::rows_wanted(int limit) const {
  assert(!finished());
  const std::int64_t next = sequence_->next_position();
  int most = static_cast<int>(std::min<std::int64_t>(tokens_left(), limit));
  // The call may have ended with the last token that was drawn before, which is then never fed.
  const std::int64_t drawn = context_.drawn_end() - next;
  if (drawn > 0 && !context_.request.drawn.empty()) {
    most = static_cast<int>(std::min<std::int64_t>(most, drawn));
  }
  int rows = 0;
  while (rows < most && known(next + rows)) ++rows;
  if (rows > 0 && context_.request.uses_particles()) return rows;  // and then it waits
  if (rows < most && !has_mask_after(rows)) return rows;
  return std::min(rows + 1, most);  // one more, to be sampled
}

void Sequence::prepare_mask(StepContext& step) {
  if (!constraint_ || constraint_->ready()) return;
  const std::size_t most = std::min(step.row_mask_budget, step.mask_budget_left);
  std::size_t left = most;
  constraint_->prepare(&left);
  step.mask_budget_left -= most - left;
}

bool Sequence::has_mask_after(int rows) const {
  if (!constraint_) return true;
  if (!constraint_->ready()) return false;
  // A mask follows from the new tokens before it, which are taken first; a prompt changes none.
  return rows == 0 || known(sequence_->next_position() + rows - 1)->second == TokenSource::kPrompt;
}

int Sequence::prompt_rows_wanted(int limit) const {
  const std::int64_t left = bounded(context_.prompt_end() - sequence_->next_position());
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, limit));
}

bool Sequence::begin_drafts(int rows) {
  const std::int64_t next = sequence_->next_position();
  if (next < num_tokens_) return false;  // they have been observed already
  if (!context_.request.drawn.empty() && next < context_.drawn_end()) return false;
  if (constraint_ && known(next + rows - 1)) return false;  // nothing is sampled yet
  return drafts_.propose(next, rows, next + tokens_left());
}

bool Sequence::accept(int i, StepContext& step) {
  const SampleDrafts::Verdict verdict = drafts_.judge(i, *sequence_->pending);
  if (verdict == SampleDrafts::Verdict::kRight) {
    ++accepted_;
    ++step.accepted_tokens;
  }
  return verdict != SampleDrafts::Verdict::kWrong;
}

void Sequence::begin_step(const DraftHeadPlan* plan) {
  drafts_.begin_step(plan != nullptr && context_.request.max_new_tokens > 1 &&
                     plan->reads_prompts());
}

bool Sequence::is_read_by_head(std::int64_t position) const {
  const std::int64_t end = context_.prompt_end();
  return drafts_.reads_prompt() && position >= num_tokens_ && position < end &&
         !needs_output(position) && position >= end - context_.model.draft_window();
}

void Sequence::append_rows(int count, std::vector<BatchRow>& rows) const {
  const int first_draft = count - drafts_.size();
  std::int32_t token = *sequence_->pending;
  std::int64_t next_position = sequence_->next_position();
  for (int i = 0; i < count; ++i, ++next_position) {
    rows.push_back({.token = token,
                    .sequence = sequence_,
                    .wants_output = needs_output(next_position),
                    .is_draft = i >= first_draft,
                    .keeps_hidden = is_read_by_head(next_position)});
    if (i + 1 == count) break;
    token = i + 1 < first_draft ? known(next_position)->first : drafts_.token(i + 1 - first_draft);
  }
}

std::int64_t Sequence::position_to_draw() const {
  return sequence_->next_position() - 1;  // the token that was fed still counts as pending, too
}

bool Sequence::can_draw_ahead(int count) const {
  const std::int64_t position = position_to_draw();
  return count == 1 && drafts_.size() == 0 && !constraint_ && !reasoning_ && !known(position) &&
         needs_output(position);
}

void Sequence::draw_ahead(std::span<const float> output, SamplingScratch& scratch) {
  if (!all_finite(output)) return;  // absorb() refuses it
  grammar::MaskWords unused;        // there is no grammar
  drawn_ahead_ = sample(position_to_draw(), output, without_stops({}, unused), scratch);
}

bool Sequence::absorb(int count, OutputRows outputs, StepContext& step) {
  // The step has fed `count` tokens, the pending one first.
  sequence_->pending.reset();
  const std::int64_t first_position = sequence_->next_position() - count + 1;
  const int first_draft = count - drafts_.size();
  const int drafted = drafts_.num_drafted();
  drafted_ += drafted;
  step.drafted_tokens += static_cast<std::uint64_t>(drafted);
  int kept = 0;  // rows that stay fed
  for (bool goes_on = true; goes_on;) {
    const std::int64_t position = first_position + kept++;
    std::span<const float> output;
    const bool is_read = is_read_by_head(position);
    if (needs_output(position)) {
      output = outputs.next();
      if (!drawn_ahead_ && !all_finite(output)) return false;
    }
    const Placed placed = decide(position, output, step);
    if (placed.source != TokenSource::kSampled) ++read_;
    place(placed, output, step);
    if (is_read || !output.empty()) {
      drafts_.follow(position, *sequence_->pending, is_read, step.draft_plan);
    }
    goes_on = kept < count && !finished();
    if (!goes_on || kept < first_draft) continue;
    // A draft whose next mask takes longer than the step has time for is fed again in another.
    if (!known(position + 1)) prepare_mask(step);
    goes_on = (known(position + 1) || has_mask_after(0)) && accept(kept - first_draft, step);
  }
  // Tokens that were drawn before do not continue after a stop, unless they are another request's.
  if (kept < first_draft) return false;
  sequence_->rollback(count - kept);
  drafts_.clear();
  const std::int64_t window = context_.request.window;
  if (!finished() && window > 0 && sequence_->num_tokens() == window) {
    begin_anew(context_.origin_at(num_tokens_), step);
  }
  waits_ = context_.request.uses_particles() && !finished() &&
           context_.given_token(num_tokens_ - 1) != nullptr && !known(num_tokens_);
  return true;
}

Sequence::Placed Sequence::decide(std::int64_t position, std::span<const float> output,
                                  StepContext& step) {
  if (const auto found = known(position)) return {position, found->first, found->second};
  return {position, draw(position, output, step), TokenSource::kSampled};
}

std::int32_t Sequence::draw(std::int64_t position, std::span<const float> output,
                            StepContext& step) {
  if (drawn_ahead_) return *std::exchange(drawn_ahead_, std::nullopt);
  if (const auto forced = reasoning_ ? reasoning_->forced() : std::nullopt) return *forced;
  std::span<const std::uint64_t> allowed;
  if (constraint_ && constraint_->exceeded()) {
    throw GrammarFailure{RequestOutcome::kGrammarWork};
  }
  if (constraint_) allowed = constraint_->mask(step.mask);
  allowed = without_stops(allowed, step.unending_mask);
  if (!allowed.empty()) {
    const auto first = std::ranges::find_if(allowed, [](std::uint64_t word) { return word != 0; });
    if (first == allowed.end()) {
      ++step.empty_masks;
      throw GrammarFailure{RequestOutcome::no_token(constraint_->needed_byte())};
    }
    const bool is_only = std::has_single_bit(*first) &&
                         std::all_of(first + 1, allowed.end(), [](auto word) { return word == 0; });
    if (is_only) {
      return static_cast<std::int32_t>((first - allowed.begin()) * 64) + std::countr_zero(*first);
    }
  }
  return sample(position, output, allowed, step.sampling);
}

std::span<const std::uint64_t> Sequence::without_stops(std::span<const std::uint64_t> allowed,
                                                       grammar::MaskWords& memory) const {
  const std::vector<std::uint64_t>& unending = context_.unending;
  if (unending.empty() || generated_ >= context_.request.stop.min_tokens) return allowed;
  if (allowed.empty()) return unending;
  memory.resize(allowed.size());
  std::ranges::transform(allowed, unending, memory.begin(), std::bit_and<>());
  const bool has_others = std::ranges::any_of(memory, [](std::uint64_t word) { return word != 0; });
  return has_others ? std::span<const std::uint64_t>(memory) : allowed;
}

std::int32_t Sequence::sample(std::int64_t position, std::span<const float> output,
                              std::span<const std::uint64_t> allowed,
                              SamplingScratch& scratch) const {
  return context_.model.head().sample(output, context_.request.sampling, penalty_counts(scratch),
                                      allowed, DrawSource{seed_, position}, scratch);
}

void Sequence::place(const Placed& placed, std::span<const float> output, StepContext& step) {
  assert(!finished());
  if (placed.position < num_tokens_) return place_past(placed, step);
  note(placed);
  ++num_tokens_;
  if (!recent_.empty()) recent_.put(placed.position, placed.token);
  if (!recent_counts_.empty()) recent_counts_.put(placed.token);
  drafts_.observe(placed.token);
  if (log_ != nullptr) log_->append(placed.token, placed.source);
  count(placed, step);  // before it is emitted: it is paid for, whether or not the sink throws
  emit(placed, output, step);
  if (placed.source != TokenSource::kPrompt && !finished()) {
    if (constraint_) constraint_->advance(placed.token);
    if (reasoning_) reasoning_->advance(placed.token);
  }
  check_end(placed.position + 1);
}

void Sequence::note(const Placed& placed) {
  sequence_->pending = placed.token;
  if (!sequence_->counts.empty()) sequence_->counts.add(placed.token);
}

void Sequence::place_past(const Placed& placed, StepContext& step) {
  note(placed);
  ++replayed_;
  ++step.prompt_tokens;
  // The end of the replay, but not of a window that reaches beyond it.
  const std::int64_t end = context_.first_position;
  if (context_.request.replay.empty() || num_tokens_ != end || placed.position + 1 != end) return;
  sequence_->generated_tail.assign(context_.request.replay_tail);
  stops_.replay(sequence_->generated_tail);
}

void Sequence::count(const Placed& placed, StepContext& step) {
  if (placed.source == TokenSource::kPrompt) {
    ++step.prompt_tokens;
    return;
  }
  ++step.generated_tokens;
  ++generated_;
  if (placed.source == TokenSource::kGiven) ++given_;
  if (first_new_) {
    step.metrics.between_tokens.observe(step.now - last_new_);
  } else {
    first_new_ = step.now;
  }
  last_new_ = step.now;
}

void Sequence::emit(const Placed& placed, std::span<const float> output, StepContext& step) {
  const GenerationRequest& request = context_.request;
  TokenEvent event;
  event.sample = index_;
  event.position = placed.position;
  event.token = placed.token;
  event.source = placed.source;
  const bool shown = placed.source != TokenSource::kPrompt || request.echo_prompt;
  if (shown && !output.empty()) {
    const Head& head = context_.model.head();
    const bool weighs = request.uses_particles() && placed.source == TokenSource::kGiven;
    if (request.log2_probs || weighs) {
      const double log2_prob = head.log2_prob(output, placed.token);
      if (request.log2_probs) event.log2_prob = static_cast<float>(log2_prob);
      if (weighs) outlet_.weigh(index_, log2_prob);
    }
    if (request.top_log2_probs > 0) {
      event.top = top_tokens(head, output, request.top_log2_probs, step);
    }
  }
  if (placed.source == TokenSource::kSampled) {
    reason_ = stops_.pass(event, generated_ > request.stop.min_tokens, sequence_->generated_tail);
  } else {  // not generated text
    stops_.interrupt(sequence_->generated_tail);
    if (shown) outlet_.emit(event);
  }
}

void Sequence::check_end(std::int64_t num_tokens) {
  if (finished()) return;
  if (context_.max_tokens != 0 && num_tokens >= context_.max_tokens) {
    finish(FinishReason::kEndOfSequence);
  } else if (num_tokens >= context_.prompt_end() && generated_ >= context_.request.max_new_tokens) {
    finish(FinishReason::kLength);
  }
}

void Sequence::finish(FinishReason reason) {
  if (finished()) return;
  reason_ = reason;
  stops_.flush();
}

SampleResult Sequence::result(TimePoint submitted, std::optional<TimePoint> started,
                              TimePoint now) const {
  SampleResult result;
  result.sample = index_;
  result.reason = *reason_;
  result.reused_tokens = context_.first_position;
  result.prompt_tokens =
      std::min(num_tokens_, context_.prompt_end()) - context_.first_position - cached_ - skipped_;
  result.cached_tokens = cached_;
  result.skipped_tokens = skipped_;
  result.replayed_tokens = replayed_;
  result.generated_tokens = generated_;
  result.given_tokens = given_;
  result.drafted_tokens = drafted_;
  result.accepted_tokens = accepted_;
  result.seed = seed_;
  result.queued = started.value_or(now) - submitted;
  if (started) result.prompt = first_new_.value_or(now) - *started;
  if (first_new_) result.generation = last_new_ - *first_new_;
  result.stop_string = stops_.stop_string();
  if (reason_ == FinishReason::kStopToken) result.stop_token = sequence_->pending;
  result.omitted_tokens = stops_.omitted();
  result.cut_bytes = stops_.cut_bytes();
  result.position = num_tokens_;
  result.window = context_.request.window;
  result.restarts = window_restarts(result.window, context_.first_position, num_tokens_);
  return result;
}

}  // namespace lintel
