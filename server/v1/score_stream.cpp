#include "server/v1/score_stream.h"

#include <chrono>
#include <span>
#include <utility>

#include "server/call/status.h"
#include "server/call/unary_call.h"
#include "server/stream/outcome_status.h"
#include "server/stream/refusals.h"

namespace lintel {
namespace {

// How soon a sequence that found no place is tried again when nothing of its own request will end.
constexpr std::chrono::milliseconds kRetryInterval{5};

}  // namespace

void write_score(std::size_t index, const std::vector<float>& log2_probs, v1::ScoreResponse& wire) {
  wire.set_index(static_cast<std::uint32_t>(index));
  wire.mutable_log2_probs()->Add(log2_probs.begin(), log2_probs.end());
  double sum = 0;
  for (const float log2_prob : log2_probs) sum += log2_prob;
  wire.set_bits_per_dim(log2_probs.empty() ? 0.0 : -sum / static_cast<double>(log2_probs.size()));
}

// Gathers the log2-probabilities of one sequence.
class ScoreStream::SequenceSink final : public TokenSink {
 public:
  SequenceSink(std::shared_ptr<ScoreStream> stream, std::size_t index)
      : stream_(std::move(stream)), index_(index) {}

  bool on_token(const TokenEvent& event) override {
    if (event.log2_prob) log2_probs_.push_back(*event.log2_prob);
    return true;  // bounded by the sequence
  }
  void on_sample_finish(const SampleResult&) override {}
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override {
    stream_->sequence_done(index_, std::move(log2_probs_), outcome);
  }

 private:
  const std::shared_ptr<ScoreStream> stream_;
  const std::size_t index_;
  std::vector<float> log2_probs_;
};

ScoreStream::ScoreStream(SharedModel model, SessionStore& store, ScoreSequences sequences,
                         const Options& options)
    : model_(std::move(model)),
      store_(store),
      sequences_(std::move(sequences)),
      options_(options) {}

grpc::Status ScoreStream::begin() { return advance(); }

grpc::Status ScoreStream::submit(std::size_t index, RequestHandle* handle, bool* full) {
  // Before memory is asked for: a call that waits for some would not hear of it otherwise.
  if (model_->scheduler->draining()) return stopped_status(*model_);
  const std::span<const std::int32_t> values = sequences_[index];
  SessionStore::LeaseResult leased = store_.lease_one_shot(model_->name, model_->transformer,
                                                           static_cast<std::int64_t>(values.size()),
                                                           /*num_samples=*/1, options_.owner);
  if (leased.refusal) {
    grpc::Status status =
        store_refusal(leased.refusal, store_.options(), /*session_id=*/"", options_.owner);
    *full = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    return status;
  }
  GenerationRequest request;
  request.prompt.assign(values.begin(), values.end());
  request.log2_probs = true;
  request.echo_prompt = true;
  request.deadline = options_.deadline;
  request.allowance = options_.allowance;
  request.held_bytes = options_.held_bytes;
  {
    MutexLock lock(mutex_);
    if (next_write_ + slots_.size() == index) slots_.emplace_back();  // else from an earlier try
  }
  auto self = std::static_pointer_cast<ScoreStream>(shared_from_this());
  const Scheduler::SubmitResult result =
      model_->scheduler->submit(std::move(request), std::move(leased.lease),
                                std::make_shared<SequenceSink>(std::move(self), index));
  if (result.error == Scheduler::SubmitError::kDraining) return stopped_status(*model_);
  if (result.error == Scheduler::SubmitError::kQueueFull) {
    *full = true;
    return queue_full(options_.max_queued_requests, options_.max_queued_bytes);
  }
  *handle = result.handle;
  return grpc::Status::OK;
}

grpc::Status ScoreStream::advance() {
  while (true) {
    std::size_t index = 0;
    {
      MutexLock lock(mutex_);
      if (failure_ || submitting_ || next_submit_ == sequences_.size()) return grpc::Status::OK;
      if (next_submit_ >= next_write_ + options_.window) return grpc::Status::OK;
      submitting_ = true;
      index = next_submit_;
      // Before it can be done, and the call with it: that may be sooner than submit() returns.
      ++running_;
      used_.prompt += static_cast<std::int64_t>(sequences_[index].size());
    }
    RequestHandle handle;
    bool full = false;
    grpc::Status status = guarded([&] { return submit(index, &handle, &full); });
    if (index == 0 && !status.ok()) {
      settle(index, status, full, handle);
      return status;
    }
    // Until submitting_ falls the call cannot finish, so the scheduler is there.
    if (!settle(index, std::move(status), full, handle)) return grpc::Status::OK;
  }
}

bool ScoreStream::settle(std::size_t index, grpc::Status status, bool full,
                         const RequestHandle& handle) {
  const bool submitted = status.ok();
  bool cancel = false;
  {
    MutexLock lock(mutex_);
    if (submitted) {
      // It may have been written already, and its slot is gone.
      if (index >= next_write_) slots_[index - next_write_].handle = handle;
      ++next_submit_;
      cancel = failure_.has_value();  // came while nobody could know this handle
    } else {
      --running_;
      used_.prompt -= static_cast<std::int64_t>(sequences_[index].size());
    }
  }
  if (cancel) model_->scheduler->cancel(handle);
  if (!submitted && !full && index > 0) fail(std::move(status));
  bool wait = false;
  {
    MutexLock lock(mutex_);
    submitting_ = false;
    // What of this request still runs calls advance() again when it is done.
    wait = full && index > 0 && running_ == 0 && !failure_ && !alarm_set_;
    alarm_set_ = alarm_set_ || wait;
  }
  if (wait) {
    if (grpc::Status set = guarded([&] { return set_alarm(); }); !set.ok()) fail(std::move(set));
  }
  if (index > 0) pump();  // a failure may have waited for submitting_
  return submitted;
}

grpc::Status ScoreStream::set_alarm() {
  // The alarm keeps this function until it is set again or gone, and the stream keeps the alarm: a
  // shared pointer in here would keep the stream, and its model, for ever.
  alarm_.Set(std::chrono::system_clock::now() + kRetryInterval, [stream = weak_from_this()](bool) {
    // From here on nothing captured is used: the alarm may be set again meanwhile, in here or by
    // another thread, and then this function is gone.
    const auto self = std::static_pointer_cast<ScoreStream>(stream.lock());
    if (self != nullptr) self->try_again();
  });
  return grpc::Status::OK;
}

void ScoreStream::try_again() {
  {
    MutexLock lock(mutex_);
    alarm_set_ = false;
  }
  // Memory may be full for as long as others like; the model is wanted back before that.
  if (model_->retired) {
    fail(guarded([&] { return stopped_status(*model_); }));
    pump();
    return;
  }
  advance();
}

void ScoreStream::sequence_done(std::size_t index, std::vector<float> log2_probs,
                                RequestOutcome outcome) {
  {
    MutexLock lock(mutex_);
    --running_;
    Slot& slot = slots_[index - next_write_];
    slot.log2_probs = std::move(log2_probs);
    slot.done = outcome == RequestOutcome::kDone;
  }
  if (outcome != RequestOutcome::kDone) {
    fail(guarded([&] { return outcome_status(outcome, *model_); }));
  }
  pump();
  advance();
}

void ScoreStream::fail(grpc::Status status) {
  {
    MutexLock lock(mutex_);
    if (failure_) return;
    failure_ = std::move(status);
  }
  // Nothing is written from here on, so the slots stay. One by one, without a list of them: it may
  // be the want of memory that ends the call.
  for (std::size_t i = 0;; ++i) {
    RequestHandle handle;
    {
      MutexLock lock(mutex_);
      if (i >= slots_.size()) return;
      if (slots_[i].done) continue;
      handle = slots_[i].handle;
    }
    model_->scheduler->cancel(handle);
  }
}

void ScoreStream::on_gone() {
  fail(cancelled());
  pump();
}

void ScoreStream::on_lost() {
  fail(out_of_memory());
  pump();
}

ResponseStream<v1::ScoreResponse>::Next ScoreStream::next(v1::ScoreResponse& message,
                                                          grpc::Status& status) {
  if (!failure_) {
    if (slots_.empty() || !slots_.front().done) return Next::kNothing;
    const std::size_t index = next_write_;
    const Slot& slot = slots_.front();
    grpc::Status filled = guarded([&] {
      write_score(index, slot.log2_probs, message);
      return grpc::Status::OK;
    });
    if (filled.ok()) {
      slots_.pop_front();
      ++next_write_;
      if (next_write_ < sequences_.size()) return Next::kWrite;
      status = grpc::Status::OK;
      return Next::kWriteAndFinish;
    }
    failure_ = std::move(filled);  // what runs ends by itself
  }
  // Not while a sequence could still join: the call's end may be the server's.
  if (running_ > 0 || submitting_) return Next::kNothing;
  status = std::move(*failure_);
  return Next::kFinish;
}

}  // namespace lintel
