#include "server/infer_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/outcome_status.h"
#include "server/service_call.h"
#include "server/status.h"

namespace lintel {

// Gathers one row.
class InferRun::RowSink final : public TokenSink {
 public:
  RowSink(std::shared_ptr<InferRun> run, std::size_t index, SharedModel model, bool log2_probs)
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
    run_->row_done(index_, std::move(row_), used_, outcome_status(outcome, *model_));
  }

 private:
  const std::shared_ptr<InferRun> run_;
  const std::size_t index_;
  const SharedModel model_;
  const bool log2_probs_;
  InferredRow row_;
  TokenUse used_;
};

void InferRun::begin(std::vector<PreparedGeneration> prepared) {
  {
    MutexLock lock(mutex_);
    rows_.resize(prepared.size());
    rows_left_ = prepared.size();
  }
  for (std::size_t i = 0; i < prepared.size(); ++i) {
    PreparedGeneration& row = prepared[i];
    Scheduler& scheduler = *row.model->scheduler;
    RequestHandle handle;
    const bool log2_probs = row.checked.request.log2_probs;
    const grpc::Status submitted = guarded([&]() -> grpc::Status {
      Scheduler::SubmitResult result =
          scheduler.submit(std::move(row.checked.request), std::move(row.lease),
                           std::make_shared<RowSink>(shared_from_this(), i, row.model, log2_probs));
      if (result.error == Scheduler::SubmitError::kDraining) return stopped_status(*row.model);
      if (result.error == Scheduler::SubmitError::kQueueFull) {
        return queue_full(scheduler.options().max_queued_requests);
      }
      handle = result.handle;
      return grpc::Status::OK;
    });
    if (!submitted.ok()) {
      row_done(i, {}, {}, submitted);
      continue;
    }
    bool already_failed = false;
    {
      MutexLock lock(mutex_);
      running_.push_back({row.model, handle});
      already_failed = !status_.ok();
    }
    if (already_failed) scheduler.cancel(handle);
  }
}

void InferRun::cancel() { fail(cancelled()); }

void InferRun::fail(const grpc::Status& status) {
  std::vector<Running> running;
  {
    MutexLock lock(mutex_);
    if (!status_.ok() || on_done_ == nullptr) return;
    status_ = status;
    running = running_;
  }
  for (const Running& row : running) row.model->scheduler->cancel(row.handle);
}

void InferRun::row_done(std::size_t index, InferredRow row, TokenUse used,
                        const grpc::Status& status) {
  if (!status.ok()) fail(status);
  OnDone on_done;
  std::vector<InferredRow> rows;
  grpc::Status result;
  TokenUse all;
  {
    MutexLock lock(mutex_);
    rows_[index] = std::move(row);
    used_.prompt += used.prompt;
    used_.generated += used.generated;
    if (--rows_left_ > 0) return;
    on_done = std::exchange(on_done_, nullptr);
    rows = std::move(rows_);
    result = status_;
    all = used_;
    running_.clear();  // lets go of the model
  }
  on_done(result, std::move(rows), all);
}

}  // namespace lintel
