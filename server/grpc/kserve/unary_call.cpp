#include "server/grpc/kserve/unary_call.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "server/api/outcome_status.h"
#include "server/api/refusals.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/status.h"
#include "server/sessions/persistence/durable_call.h"
#include "server/sessions/persistence/past_call.h"

namespace lintel {

// Gathers the rows of one prompt, its samples.
class RowGatherer::RowSink final : public TokenSink {
 public:
  // stored_session: that the row is of, if it outlives the server; else empty.
  RowSink(std::shared_ptr<RowGatherer> run, std::size_t index, SharedModel model,
          std::string stored_session)
      : run_(std::move(run)),
        index_(index),
        model_(std::move(model)),
        stored_session_(std::move(stored_session)),
        rows_(run_->request_->num_samples) {}

  bool on_token(const TokenEvent& event) override {
    append_value(*run_->request_, event.token, event.log2_prob, event.top, row_of(event.sample));
    return true;  // bounded by max_new_tokens
  }
  void on_sample_finish(const SampleResult& result) override {
    // The samples' one prompt was read once.
    used_.prompt = std::max(used_.prompt, result.prompt_tokens);
    used_.generated += result.generated_tokens;
    RowValues& row = row_of(result.sample);
    row.position = result.position;
    row.restarts = result.restarts;
    row.log2_evidence = result.log2_evidence;
  }
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override {
    run_->row_done(index_, std::move(rows_), used_, guarded([&] {
                     return outcome_status(outcome, *model_, stored_session_,
                                           /*is_stored=*/!stored_session_.empty());
                   }));
  }

 private:
  RowValues& row_of(int sample) { return rows_[static_cast<std::size_t>(sample)]; }

  const std::shared_ptr<RowGatherer> run_;
  const std::size_t index_;
  const SharedModel model_;
  const std::string stored_session_;
  std::vector<RowValues> rows_;
  ValueUse used_;
};

void RowGatherer::begin(std::vector<PreparedGeneration> prepared) noexcept {
  // What is known of a row before it runs. From here on the end of the call ends the row, too.
  grpc::Status room = guarded([&] {
    MutexLock lock(mutex_);
    rows_left_ = prepared.size();
    rows_.resize(prepared.size() * request_->num_samples);
    running_.resize(prepared.size());
    for (std::size_t i = 0; i < prepared.size(); ++i) running_[i].model = prepared[i].model;
    return status_;  // cancelled already: none is submitted
  });
  for (std::size_t i = 0; i < prepared.size(); ++i) {
    grpc::Status status = room.ok() ? submit(i, prepared[i]) : copy_of(room);
    if (status.ok()) continue;
    prepared[i].lease = SessionLease();  // before the client receives its answer
    row_done(i, {}, {}, std::move(status));
  }
}

grpc::Status RowGatherer::submit(std::size_t index, PreparedGeneration& row) noexcept {
  return guarded([&] {
    const RequestHandle handle = [&] {
      MutexLock lock(mutex_);
      return running_[index].handle;
    }();
    const auto sink = std::make_shared<RowSink>(
        shared_from_this(), index, row.model, row.durable == nullptr ? "" : row.lease.session_id());
    if (row.past) {  // it has been run
      {
        MutexLock lock(mutex_);
        running_[index].past = row.past;
      }
      row.past->tell(sink);
      return grpc::Status::OK;
    }
    GenerationRequest request = std::move(row.checked.request);
    return submit_status(
        row.durable == nullptr
            ? row.model->scheduler->submit(std::move(request), std::move(row.lease), sink, handle)
            : row.durable->submit(std::move(request), std::move(row.lease), sink, handle),
        *row.model);
  });
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
    std::optional<Running> row;
    {
      MutexLock lock(mutex_);
      if (i >= running_.size()) return;
      row = running_[i];
    }
    if (row->past != nullptr) row->past->cancel();
    if (row->model != nullptr) row->model->scheduler->cancel(row->handle);
  }
}

void RowGatherer::row_done(std::size_t index, std::vector<RowValues> samples, ValueUse used,
                           grpc::Status status) noexcept {
  if (!status.ok()) fail(std::move(status));
  SharedModel over;  // released without the mutex
  OnDone on_done;
  std::vector<RowValues> rows;
  grpc::Status result;
  ValueUse all;
  {
    MutexLock lock(mutex_);
    if (index < running_.size()) std::swap(over, running_[index].model);
    const std::size_t first = index * request_->num_samples;
    if (first + samples.size() <= rows_.size()) {
      std::ranges::move(samples, rows_.begin() + static_cast<std::ptrdiff_t>(first));
    }
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
