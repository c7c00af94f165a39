#include "server/kserve/infer_tokens.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/call/status.h"
#include "server/call/unary_call.h"
#include "server/kserve/unary_call.h"
#include "server/stream/chunk_interval.h"
#include "server/stream/outcome_status.h"
#include "server/stream/refusals.h"

namespace lintel {
namespace {

// gRPC clients accept 4 MiB by default; a value and its log-probability take up to 10 bytes.
constexpr std::size_t kMostMessageTokens = 300'000;

std::size_t message_tokens(const InferTokens::Options& options) {
  std::size_t most = options.max_tokens_per_message > 0
                         ? static_cast<std::size_t>(options.max_tokens_per_message)
                         : kMostMessageTokens;
  // A paused stream has to get below half its bound by writing full messages.
  most = std::min(most, static_cast<std::size_t>(options.outbox_tokens) / 2);
  return std::clamp<std::size_t>(most, 1, kMostMessageTokens);
}

// All or nothing: every value has its log-probability.
void append(RowValues& to, RowValues& from) {
  const std::size_t before = to.log2_probs.size();
  to.log2_probs.insert(to.log2_probs.end(), from.log2_probs.begin(), from.log2_probs.end());
  try {
    to.tokens.insert(to.tokens.end(), from.tokens.begin(), from.tokens.end());
  } catch (...) {
    to.log2_probs.resize(before);
    throw;
  }
  from.tokens.clear();
  from.log2_probs.clear();
}

}  // namespace

void mark_final(inference::ModelInferResponse& response, bool is_final) {
  (*response.mutable_parameters())["triton_final_response"].set_bool_param(is_final);
}

InferTokens::InferTokens(std::shared_ptr<const TensorRequest> request,
                         inference::ModelInferResponse head, const Options& options,
                         const Clock& clock, const ActiveCalls& calls, Callbacks callbacks)
    : request_(std::move(request)),
      options_(options),
      message_tokens_(message_tokens(options)),
      clock_(clock),
      calls_(calls),
      callbacks_(std::move(callbacks)) {
  *message_.mutable_infer_response() = std::move(head);
  mark_final(*message_.mutable_infer_response(), false);
}

grpc::Status InferTokens::begin(PreparedGeneration prepared) {
  const SharedModel model = prepared.model;
  {
    MutexLock lock(mutex_);
    model_ = model;
  }
  RequestHandle handle;
  grpc::Status submitted = guarded([&]() -> grpc::Status {
    const Scheduler::SubmitResult result = model->scheduler->submit(
        std::move(prepared.checked.request), std::move(prepared.lease), shared_from_this());
    if (result.error == Scheduler::SubmitError::kDraining) return stopped_status(*model);
    if (result.error == Scheduler::SubmitError::kQueueFull) {
      const Scheduler::Options& options = model->scheduler->options();
      return queue_full(options.max_queued_requests, options.max_queued_bytes);
    }
    handle = result.handle;
    return grpc::Status::OK;
  });
  bool gone = false;
  bool resume = false;
  {
    MutexLock lock(mutex_);
    if (!submitted.ok()) model_.reset();
    handle_ = handle;
    gone = abandoned_.has_value();
    // Paused and written before anybody could know this handle.
    resume = submitted.ok() && !paused_ && !gone;
  }
  if (submitted.ok() && gone) model->scheduler->cancel(handle);
  if (resume) model->scheduler->resume(handle);
  return submitted;
}

bool InferTokens::on_token(const TokenEvent& event) {
  // The value last: it says that both are there.
  gathered_.log2_probs.push_back(event.log2_prob.value_or(std::numeric_limits<float>::quiet_NaN()));
  gathered_.tokens.push_back(event.token);
  const auto most = static_cast<std::size_t>(options_.outbox_tokens);
  if (gathered_.tokens.size() + waiting_.load(std::memory_order_relaxed) < most) return true;
  MutexLock lock(mutex_);
  hand_over();
  if (waiting_.load() >= most) paused_ = true;
  return !paused_;
}

void InferTokens::on_sample_finish(const SampleResult& result) {
  MutexLock lock(mutex_);
  used_.prompt += result.prompt_tokens;
  used_.generated += result.generated_tokens;
}

bool InferTokens::due() const {
  if (gathered_.tokens.empty()) return waiting_.load(std::memory_order_relaxed) > 0;
  if (is_first_ || gathered_.tokens.size() >= message_tokens_) return true;
  return clock_.now() - last_handed_over_ >=
         chunk_interval(options_.chunk_interval, calls_.count());
}

void InferTokens::on_step_end() {
  if (!due()) return;
  {
    MutexLock lock(mutex_);
    hand_over();
  }
  pump();
}

void InferTokens::on_finish(RequestOutcome outcome) {
  callbacks_.over();
  {
    MutexLock lock(mutex_);
    try {
      hand_over();
      ended_ = outcome_status(outcome, *model_);
    } catch (...) {
      ended_ = out_of_memory();
    }
    model_.reset();
  }
  pump();
}

void InferTokens::hand_over() {
  is_first_ = false;
  last_handed_over_ = clock_.now();
  if (!abandoned_) {  // else nobody reads it; the cancellation is on its way
    const std::size_t count = gathered_.tokens.size();
    append(outbox_, gathered_);
    waiting_.fetch_add(count);
  }
  gathered_ = {};
}

InferTokens::Action InferTokens::next() {
  if (writing_ || wrote_last_ || told_gone_) return Action::kNothing;
  if (abandoned_) {
    if (!ended_) return Action::kNothing;
    told_gone_ = true;
    return Action::kGone;
  }
  const std::size_t waiting = waiting_.load();
  if (waiting == 0 && !ended_) return Action::kNothing;
  const std::size_t count = std::min(waiting, message_tokens_);
  const auto first = static_cast<std::ptrdiff_t>(taken_);
  const auto last = static_cast<std::ptrdiff_t>(taken_ + count);
  std::vector<RowValues> rows(1);
  rows[0].tokens.assign(outbox_.tokens.begin() + first, outbox_.tokens.begin() + last);
  rows[0].log2_probs.assign(outbox_.log2_probs.begin() + first, outbox_.log2_probs.begin() + last);
  taken_ += count;
  waiting_.fetch_sub(count);
  if (2 * taken_ >= outbox_.tokens.size()) {
    outbox_.tokens.erase(outbox_.tokens.begin(), outbox_.tokens.begin() + last);
    outbox_.log2_probs.erase(outbox_.log2_probs.begin(), outbox_.log2_probs.begin() + last);
    taken_ = 0;
  }
  // What failed says so in a message of its own, after what it gave.
  const bool failed = ended_ && !ended_->ok();
  const bool is_last = ended_ && count == waiting && (!failed || count == 0);
  // What every message begins with stays, with the mark in it: protobuf's maps do not survive that
  // memory is refused while something is put into them.
  message_.clear_error_message();
  message_.mutable_infer_response()->clear_outputs();
  message_.mutable_infer_response()->clear_raw_output_contents();
  if (is_last && failed) {
    message_.set_error_message(ended_->error_message());
  } else {
    write_tensor_response(*request_, rows, *message_.mutable_infer_response());
  }
  mark_final(*message_.mutable_infer_response(), is_last);
  writing_ = true;
  wrote_last_ = is_last;
  return Action::kWrite;
}

void InferTokens::pump() {
  Action action = Action::kNothing;
  grpc::Status gone;
  bool lost = false;
  {
    MutexLock lock(mutex_);
    try {
      action = next();
    } catch (...) {
      lost = true;
    }
    if (action == Action::kGone) gone = copy_of(*abandoned_);
  }
  if (lost) return abandon(out_of_memory());
  // The flags keep every other thread from coming here until the operation is over.
  if (action == Action::kWrite) callbacks_.write(&message_);
  if (action == Action::kGone) callbacks_.gone(std::move(gone));
}

bool InferTokens::written(bool ok) {
  SharedModel model;
  RequestHandle handle;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok && wrote_last_) return true;
    if (!ok) wrote_last_ = false;  // it never came
    if (ok && paused_ && waiting_.load() <= static_cast<std::size_t>(options_.outbox_tokens) / 2) {
      paused_ = false;
      model = model_;
      handle = handle_;
    }
  }
  if (!ok) cancel();
  if (model != nullptr) model->scheduler->resume(handle);
  pump();
  return false;
}

void InferTokens::cancel() { abandon(cancelled()); }

void InferTokens::abandon(grpc::Status status) {
  SharedModel model;
  RequestHandle handle;
  {
    MutexLock lock(mutex_);
    if (!abandoned_) abandoned_ = std::move(status);
    outbox_ = {};
    taken_ = 0;
    waiting_.store(0);
    model = model_;
    handle = handle_;
  }
  if (model != nullptr) model->scheduler->cancel(handle);
  pump();
}

ValueUse InferTokens::used() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace lintel
