#include "server/kserve/unary_call.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/call/status.h"
#include "server/call/unary_call.h"
#include "server/stream/outcome_status.h"
#include "server/stream/refusals.h"

namespace lintel {

// Gathers one row.
class RowGatherer::RowSink final : public TokenSink {
 public:
  RowSink(std::shared_ptr<RowGatherer> run, std::size_t index, SharedModel model, bool log2_probs)
      : run_(std::move(run)), index_(index), model_(std::move(model)), log2_probs_(log2_probs) {}

  bool on_token(const TokenEvent& event) override {
    row_.tokens.push_back(event.token);
    if (!log2_probs_) return true;
    row_.log2_probs.push_back(event.log2_prob.value_or(std::numeric_limits<float>::quiet_NaN()));
    return true;  // bounded by max_new_tokens
  }
  void on_sample_finish(const SampleResult& result) override {
    used_.prompt += result.prompt_tokens;
    used_.generated += result.generated_tokens;
  }
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override {
    run_->row_done(index_, std::move(row_), used_,
                   guarded([&] { return outcome_status(outcome, *model_); }));
  }

 private:
  const std::shared_ptr<RowGatherer> run_;
  const std::size_t index_;
  const SharedModel model_;
  const bool log2_probs_;
  RowValues row_;
  ValueUse used_;
};

void RowGatherer::begin(std::vector<PreparedGeneration> prepared) noexcept {
  grpc::Status room = guarded([&] {
    MutexLock lock(mutex_);
    rows_left_ = prepared.size();
    rows_.resize(prepared.size());
    running_.resize(prepared.size());
    return grpc::Status::OK;
  });
  for (std::size_t i = 0; i < prepared.size(); ++i) {
    PreparedGeneration& row = prepared[i];
    if (!room.ok()) {
      row_done(i, {}, {}, copy_of(room));
      continue;
    }
    Scheduler& scheduler = *row.model->scheduler;
    RequestHandle handle;
    const bool log2_probs = row.checked.request.log2_probs;
    grpc::Status status = guarded([&]() -> grpc::Status {
      Scheduler::SubmitResult result =
          scheduler.submit(std::move(row.checked.request), std::move(row.lease),
                           std::make_shared<RowSink>(shared_from_this(), i, row.model, log2_probs));
      if (result.error == Scheduler::SubmitError::kDraining) return stopped_status(*row.model);
      if (result.error == Scheduler::SubmitError::kQueueFull) {
        return queue_full(scheduler.options().max_queued_requests,
                          scheduler.options().max_queued_bytes);
      }
      handle = std::move(result.handle);
      return grpc::Status::OK;
    });
    if (status.ok()) {
      submitted(i, row.model, std::move(handle));
    } else {
      row_done(i, {}, {}, std::move(status));
    }
  }
}

void RowGatherer::submitted(std::size_t index, SharedModel model, RequestHandle handle) noexcept {
  bool already_failed = false;
  {
    MutexLock lock(mutex_);
    // It may be done already, and the last of them: then the list is gone.
    if (index >= running_.size() || running_[index].done) return;
    already_failed = !status_.ok();
    running_[index].model = model;
    running_[index].handle = handle;
  }
  if (already_failed) model->scheduler->cancel(handle);
}

void RowGatherer::cancel() noexcept { fail(cancelled()); }

void RowGatherer::fail(grpc::Status status) noexcept {
  {
    MutexLock lock(mutex_);
    if (!status_.ok() || on_done_ == nullptr) return;
    status_ = std::move(status);
  }
  // One by one, without a list of them: it may be the want of memory that ends the call.
  for (std::size_t i = 0;; ++i) {
    Running running;
    {
      MutexLock lock(mutex_);
      if (i >= running_.size()) return;
      running = running_[i];
    }
    if (running.model != nullptr) running.model->scheduler->cancel(running.handle);
  }
}

void RowGatherer::row_done(std::size_t index, RowValues row, ValueUse used,
                           grpc::Status status) noexcept {
  if (!status.ok()) fail(std::move(status));
  Running over;  // let go of without the mutex
  OnDone on_done;
  std::vector<RowValues> rows;
  grpc::Status result;
  ValueUse all;
  {
    MutexLock lock(mutex_);
    if (index < running_.size()) {
      std::swap(over, running_[index]);
      running_[index].done = true;
    }
    if (index < rows_.size()) rows_[index] = std::move(row);
    used_.prompt += used.prompt;
    used_.generated += used.generated;
    if (--rows_left_ > 0) return;
    on_done = std::exchange(on_done_, nullptr);
    rows = std::move(rows_);
    result = std::move(status_);
    all = used_;
    running_.clear();
  }
  on_done(result, std::move(rows), all);
}

}  // namespace lintel
