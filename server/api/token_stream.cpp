// SPDX-License-Identifier: Apache-2.0
#include "server/api/token_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/api/refusals.h"
#include "server/core/threads.h"
#include "server/rpc/status.h"
#include "server/sessions/persistence/persistent_request.h"
#include "server/sessions/persistence/replayed_response.h"

namespace lintel {
namespace {

// gRPC clients accept 4 MiB by default; a token and its log-probability take up to 10 bytes, and so
// does each of the top tokens.
constexpr std::size_t kMaxMessageTokens = 300'000;

// A message of any size costs the two ends 150 to 250 us of a core, most of them for waking threads
// that find the caches full of the model. So many streams for each worker get one in
// every interval; when there are more, all wait longer, up to so many intervals. With intervals of
// 10 ms that leaves messages some 4 % of what the workers' cores have.
constexpr int kStreamsAtFullRate = 2;
constexpr int kLongestIntervals = 16;

std::size_t message_tokens(const TokenStream::Options& options) {
  std::size_t most = kMaxMessageTokens / (1 + static_cast<std::size_t>(options.top_log2_probs));
  if (options.max_tokens_per_message > 0) {
    most = std::min(most, static_cast<std::size_t>(options.max_tokens_per_message));
  }
  // A paused stream has to get below half its bound by writing full messages.
  most = std::min(most, static_cast<std::size_t>(options.outbox_tokens) / 2);
  return std::max<std::size_t>(most, 1);
}

}  // namespace

void SampleTimes::add(const SampleTimes& other) {
  queued = std::max(queued, other.queued);
  prompt = std::max(prompt, other.prompt);
  generation = std::max(generation, other.generation);
  generated_tokens = std::max(generated_tokens, other.generated_tokens);
}

std::chrono::nanoseconds chunk_interval(std::chrono::nanoseconds interval, int streams,
                                        int workers) {
  const int at_full_rate = kStreamsAtFullRate * std::max(workers, 1);
  return std::clamp(streams / at_full_rate, 1, kLongestIntervals) * interval;
}

TokenStream::TokenStream(ResponseWriter& writer, SharedModel model, const Clock& clock,
                         const ActiveCalls& calls, Options options)
    : writer_(writer),
      clock_(clock),
      calls_(calls),
      options_(std::move(options)),
      message_tokens_(message_tokens(options_)),
      workers_(model->scheduler->options().workers),
      model_(std::move(model)),
      has_begun_(!options_.begins_at_once) {}

grpc::Status TokenStream::submit(GenerationRequest request, SessionLease lease,
                                 const std::shared_ptr<PersistentRequest>& durable) {
  SharedModel model;
  {
    MutexLock lock(mutex_);
    model = model_;
  }
  const Scheduler::SubmitError error =
      durable != nullptr
          ? durable->submit(std::move(request), std::move(lease), shared_from_this(), handle_)
          : model->scheduler->submit(std::move(request), std::move(lease), shared_from_this(),
                                     handle_);
  grpc::Status submitted = submit_status(error, *model);
  if (submitted.ok()) pump();
  return submitted;
}

void TokenStream::tell(std::shared_ptr<ReplayedResponse> past) {
  bool is_gone = false;
  {
    MutexLock lock(mutex_);
    past_ = past;
    is_gone = abandoned_.has_value();
  }
  if (is_gone) past->cancel();
  pump();
  past->tell(shared_from_this());
}

bool TokenStream::has_room() const {
  MutexLock lock(mutex_);
  return !paused_;
}

bool TokenStream::on_token(const TokenEvent& event) {
  OutboxEntry entry;
  entry.position = event.position;
  entry.token = event.token;
  entry.sample = event.sample;
  entry.source = event.source;
  entry.has_log2_prob = event.log2_prob.has_value();
  entry.log2_prob = event.log2_prob.value_or(0.0f);
  entry.top.assign(event.top.begin(), event.top.end());
  entry.cut_bytes = event.cut_bytes;
  gathered_.push_back(std::move(entry));
  ++gathered_tokens_;
  const auto most = static_cast<std::size_t>(options_.outbox_tokens);
  if (gathered_tokens_ + waiting_.load(std::memory_order_relaxed) < most) return true;
  MutexLock lock(mutex_);
  hand_over();
  if (waiting_.load() >= most) paused_ = true;
  return !paused_;
}

void TokenStream::on_sample_finish(const SampleResult& result) {
  if (options_.tells_sample_ends) {
    OutboxEntry entry;
    entry.sample = result.sample;
    entry.finished = std::make_unique<const SampleResult>(result);
    gathered_.push_back(std::move(entry));
    sample_ended_ = true;
  }
  MutexLock lock(mutex_);
  // The samples' one prompt was read once.
  used_.prompt = std::max(used_.prompt, result.prompt_tokens);
  used_.generated += result.generated_tokens;
  times_.add(SampleTimes(result));
}

SampleTimes TokenStream::times() const {
  MutexLock lock(mutex_);
  return times_;
}

void TokenStream::on_step_end() {
  if (!due()) return;
  {
    MutexLock lock(mutex_);
    hand_over();
  }
  pump();
}

void TokenStream::on_finish(RequestOutcome outcome) {
  writer_.over();
  {
    MutexLock lock(mutex_);
    // The call ends even if something fails from here on.
    try {
      hand_over();
      ended_ = status_of(outcome);
    } catch (...) {
      ended_ = out_of_memory();
    }
    model_.reset();
    past_.reset();
  }
  pump();
}

bool TokenStream::due() const {
  if (gathered_.empty()) return waiting_.load(std::memory_order_relaxed) > 0;
  if (is_first_ || sample_ended_ || gathered_tokens_ >= message_tokens_) return true;
  if (options_.chunk_interval.count() == 0) return true;
  return clock_.now() - last_handed_over_ >=
         chunk_interval(options_.chunk_interval, calls_.count(), workers_);
}

void TokenStream::hand_over() {
  is_first_ = false;
  sample_ended_ = false;
  last_handed_over_ = clock_.now();
  if (!abandoned_) {  // else it is not read; the cancellation is on its way
    if (handed_over_.empty()) {
      handed_over_.swap(gathered_);
    } else {
      handed_over_.insert(handed_over_.end(), std::make_move_iterator(gathered_.begin()),
                          std::make_move_iterator(gathered_.end()));
    }
    waiting_.fetch_add(gathered_tokens_);
  }
  gathered_.clear();
  gathered_tokens_ = 0;
}

std::span<const OutboxEntry> TokenStream::take_entries() {
  if (taken_ == in_hand_.size()) {
    in_hand_.clear();
    taken_ = 0;
    in_hand_.swap(handed_over_);
  } else if (in_hand_.size() - taken_ <= message_tokens_ && !handed_over_.empty()) {
    // A message continues with what was handed over later.
    in_hand_.reserve(in_hand_.size() + handed_over_.size());
    in_hand_.erase(in_hand_.begin(), in_hand_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
    in_hand_.insert(in_hand_.end(), std::make_move_iterator(handed_over_.begin()),
                    std::make_move_iterator(handed_over_.end()));
    handed_over_.clear();
  }
  const std::size_t first = taken_;
  std::size_t values = 0;
  for (; taken_ < in_hand_.size(); ++taken_) {
    if (in_hand_[taken_].finished != nullptr) continue;
    if (values == message_tokens_) break;
    ++values;
  }
  waiting_.fetch_sub(values);
  return std::span(in_hand_).subspan(first, taken_ - first);
}

TokenStream::Turn TokenStream::next_turn() noexcept {
  Turn turn;
  if (is_busy_ || is_over_) return turn;
  if (abandoned_) {
    if (!ended_) return turn;
    std::vector<OutboxEntry>().swap(in_hand_);
    taken_ = 0;
    turn.action = Turn::Action::kGone;
    turn.status = copy_of(*abandoned_);
  } else if (!has_begun_ && (!ended_ || ended_->ok())) {
    has_begun_ = true;
    turn.action = Turn::Action::kBegin;
  } else if (is_empty()) {
    if (!ended_) return turn;
    turn.action = Turn::Action::kEnd;
    turn.status = copy_of(*ended_);
  } else {
    try {
      turn.entries = take_entries();
    } catch (...) {
      turn.action = Turn::Action::kLost;
      return turn;
    }
    const bool is_last = ended_ && ended_->ok() && is_empty();
    turn.action = is_last ? Turn::Action::kEnd : Turn::Action::kWrite;
  }
  is_busy_ = true;
  is_over_ = turn.action != Turn::Action::kBegin && turn.action != Turn::Action::kWrite;
  turn.used = used_;
  return turn;
}

void TokenStream::pump() {
  Turn turn;
  {
    MutexLock lock(mutex_);
    turn = next_turn();
  }
  if (turn.action == Turn::Action::kNothing) return;
  if (turn.action == Turn::Action::kGone) return writer_.gone(std::move(turn.status), turn.used);
  if (turn.action != Turn::Action::kLost) {
    // is_busy_ keeps every other thread from coming here until the operation is over.
    const bool is_begun = catch_exceptions(
        [&] {
          if (turn.action == Turn::Action::kBegin) {
            writer_.accepted();
          } else if (turn.action == Turn::Action::kWrite) {
            writer_.write(turn.entries);
          } else {
            writer_.end(turn.entries, std::move(turn.status), turn.used);
          }
          return true;
        },
        [] { return false; });
    if (!is_begun) abandon(out_of_memory(), /*ends_turn=*/true);
    return;
  }
  abandon(out_of_memory(), /*ends_turn=*/false);
}

void TokenStream::written(bool ok) {
  if (!ok) return abandon(cancelled(), /*ends_turn=*/true);
  SharedModel resumed;
  std::shared_ptr<ReplayedResponse> past;
  {
    MutexLock lock(mutex_);
    is_busy_ = false;
    if (paused_ && waiting_.load() <= static_cast<std::size_t>(options_.outbox_tokens) / 2) {
      paused_ = false;
      resumed = model_;
      past = past_;
    }
  }
  if (past != nullptr) past->resume();
  if (resumed != nullptr) resumed->scheduler->resume(handle_);
  pump();
}

void TokenStream::gone() noexcept { abandon(cancelled(), /*ends_turn=*/false); }

void TokenStream::abandon(grpc::Status status, bool ends_turn) noexcept {
  SharedModel model;
  std::shared_ptr<ReplayedResponse> past;
  {
    MutexLock lock(mutex_);
    past = past_;
    if (!abandoned_) abandoned_ = std::move(status);
    if (ends_turn) is_busy_ = is_over_ = false;
    std::vector<OutboxEntry>().swap(handed_over_);
    waiting_.store(0);
    model = model_;
  }
  if (model != nullptr) model->scheduler->cancel(handle_);
  if (past != nullptr) past->cancel();
  pump();
}

grpc::Status TokenStream::status_of(RequestOutcome outcome) const {
  if (outcome == RequestOutcome::kDeadline && options_.deadline_ends_well) return grpc::Status::OK;
  return outcome_status(outcome, *model_, options_.session_id, options_.session_is_stored);
}

}  // namespace lintel
