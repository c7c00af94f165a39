// RowGatherer: the rows of one ModelInfer call in the scheduler, gathered until all are done.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "server/api/prepare_generation.h"
#include "server/core/mutex.h"
#include "server/grpc/kserve/output_tensors.h"
#include "server/grpc/kserve/request.h"
#include "server/grpc/transport/call_scope.h"

namespace lintel {

// Threads: any.
class RowGatherer : public std::enable_shared_from_this<RowGatherer> {
 public:
  // Called once, when no row runs any more: the rows are whole if the status is OK. Must not throw.
  using OnDone =
      std::function<void(const grpc::Status&, std::vector<RowValues> rows, ValueUse used)>;

  // request: what the rows are of.
  RowGatherer(std::shared_ptr<const TensorRequest> request, OnDone on_done)
      : request_(std::move(request)), on_done_(std::move(on_done)) {}

  // Submits all rows; a row that finds no place ends the others. REQUIRES: there is one; called
  // once.
  void begin(std::vector<PreparedGeneration> prepared) noexcept EXCLUDES(mutex_);
  // The client is gone. Idempotent.
  void cancel() noexcept EXCLUDES(mutex_);

 private:
  class RowSink;

  struct Running {
    SharedModel model;  // while it runs: a row that is done keeps no model from being unloaded
    RequestHandle handle;
    std::shared_ptr<PastCall> past;  // that is answered from instead
  };

  grpc::Status submit(std::size_t index, PreparedGeneration& row) noexcept EXCLUDES(mutex_);
  // index: of its prompt. samples: of that, or none where they came to nothing.
  void row_done(std::size_t index, std::vector<RowValues> samples, ValueUse used,
                grpc::Status status) noexcept EXCLUDES(mutex_);
  // Ends all rows with `status`, the first one given.
  void fail(grpc::Status status) noexcept EXCLUDES(mutex_);

  const std::shared_ptr<const TensorRequest> request_;
  Mutex mutex_;
  OnDone on_done_ GUARDED_BY(mutex_);                // empty once called
  std::vector<Running> running_ GUARDED_BY(mutex_);  // one for each prompt
  std::vector<RowValues> rows_ GUARDED_BY(mutex_);
  std::size_t rows_left_ GUARDED_BY(mutex_) = 0;  // prompts whose rows are not done
  ValueUse used_ GUARDED_BY(mutex_);
  grpc::Status status_ GUARDED_BY(mutex_);  // OK: no row has failed
};

}  // namespace lintel
