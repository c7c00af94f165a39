#include "server/grpc/lintel_v1/score_stream.h"

#include <span>
#include <utility>

#include "server/api/outcome_status.h"
#include "server/api/refusals.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/status.h"

namespace lintel {
namespace {

// Whether memory that others release may help. (Where the budget promised more than the machine
// has, it was free and is not there: that ends the call, as want of any other memory does.)
bool may_have_room_later(const SessionRefusal& refusal) {
  return refusal.error == SessionError::kOwnerOutOfMemory ||
         (refusal.error == SessionError::kOutOfMemory && refusal.bytes_needed > refusal.bytes_free);
}

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

std::optional<std::size_t> ScoreStream::claim() {
  MutexLock lock(mutex_);
  if (failure_ || submitting_ || next_submit_ == sequences_.size()) return std::nullopt;
  if (next_submit_ >= next_write_ + options_.window) return std::nullopt;
  submitting_ = true;
  told_ = false;
  // Before it can be done, and the call with it: that may be sooner than submit() returns.
  ++running_;
  used_.prompt += static_cast<std::int64_t>(sequences_[next_submit_].size());
  return next_submit_++;
}

ScoreStream::Attempt ScoreStream::submit(std::size_t index) {
  Attempt attempt;
  attempt.status = guarded([&]() -> grpc::Status {
    // Before memory is asked for: a call that waits for memory would not notice otherwise.
    if (model_->scheduler->draining()) return stopped_status(*model_);
    if (options_.adapter != nullptr && options_.adapter->ended.load()) {
      return adapter_unloaded(model_->name);
    }
    const std::span<const std::int32_t> values = sequences_[index];
    SessionStore::LeaseResult leased = store_.lease_one_shot(
        model_->name, model_->transformer, static_cast<std::int64_t>(values.size()),
        /*num_samples=*/1, options_.owner, /*call_bytes=*/0, options_.adapter);
    if (leased.refusal) {
      if (may_have_room_later(leased.refusal)) attempt.lacks = Attempt::Lacks::kMemory;
      return store_refusal(leased.refusal, store_.options(), /*session_id=*/"", options_.owner);
    }
    GenerationRequest request;
    request.prompt.assign(values.begin(), values.end());
    request.log2_probs = true;
    request.echo_prompt = true;
    request.deadline = options_.deadline;
    request.allowance = options_.allowance;
    request.caller = options_.caller;
    request.held_bytes = options_.held_bytes;
    const RequestHandle handle = [&] {
      MutexLock lock(mutex_);
      if (next_write_ + slots_.size() == index) slots_.emplace_back();  // else from an earlier try
      return slots_[index - next_write_].handle;
    }();
    auto self = std::static_pointer_cast<ScoreStream>(shared_from_this());
    const Scheduler::SubmitError error =
        model_->scheduler->submit(std::move(request), std::move(leased.lease),
                                  std::make_shared<SequenceSink>(std::move(self), index), handle);
    if (error == Scheduler::SubmitError::kQueueFull) attempt.lacks = Attempt::Lacks::kPlace;
    return submit_status(error, *model_);
  });
  return attempt;
}

grpc::Status ScoreStream::advance() {
  Attempt::Lacks joined = Attempt::Lacks::kNothing;  // the rooms of these, before this try
  while (const std::optional<std::size_t> index = claim()) {
    Attempt attempt = submit(*index);
    grpc::Status refusal = *index == 0 ? copy_of(attempt.status) : grpc::Status::OK;
    const bool goes_on = settle(*index, std::move(attempt), joined);
    if (!refusal.ok()) return refusal;
    pump();  // a failure may have waited for submitting_
    if (!goes_on) break;
  }
  return grpc::Status::OK;
}

bool ScoreStream::settle(std::size_t index, Attempt attempt, Attempt::Lacks& joined) {
  bool goes_on = attempt.status.ok();
  bool runs = false;
  if (!goes_on) {
    MutexLock lock(mutex_);
    --next_submit_;
    --running_;
    used_.prompt -= static_cast<std::int64_t>(sequences_[index].size());
    runs = running_ > 0;
  }
  if (!goes_on && index > 0) {
    if (attempt.lacks == Attempt::Lacks::kNothing) {
      fail(std::move(attempt.status));
    } else if (joined < attempt.lacks) {  // tries once more: room may have come before it joined
      grpc::Status waits = guarded([&] {
        join(attempt.lacks);
        return grpc::Status::OK;
      });
      joined = attempt.lacks;
      goes_on = waits.ok();
      if (!waits.ok()) fail(std::move(waits));
    } else if (!runs && model_->retired) {
      // Memory may be full for as long as others like; the model is wanted back before that.
      fail(guarded([&] { return stopped_status(*model_); }));
    }
  }
  MutexLock lock(mutex_);
  submitting_ = false;
  if (told_) joined = Attempt::Lacks::kNothing;
  return goes_on || told_;
}

void ScoreStream::join(Attempt::Lacks lacks) {
  const std::weak_ptr<Waiter> self = std::static_pointer_cast<ScoreStream>(shared_from_this());
  // The queue's room also says that the model goes.
  model_->scheduler->waiting_room().join(self);
  // Not for a place in the queue: the memory that a try takes and releases would seem to be room.
  if (lacks == Attempt::Lacks::kMemory) store_.waiting_room().join(self);
}

void ScoreStream::on_room() noexcept {
  {
    MutexLock lock(mutex_);
    told_ = true;
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
    std::optional<RequestHandle> handle;
    {
      MutexLock lock(mutex_);
      if (i >= slots_.size()) return;
      if (slots_[i].done) continue;
      handle = slots_[i].handle;
    }
    model_->scheduler->cancel(*handle);
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
