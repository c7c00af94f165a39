// SPDX-License-Identifier: Apache-2.0
// RowGatherer: the rows of one ModelInfer call in the scheduler, gathered until all are done.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/api/kserve/request.h"
#include "server/api/prepare_generation.h"
#include "server/api/token_stream.h"
#include "server/core/mutex.h"
#include "server/engine/token_sink.h"
#include "server/rpc/call_scope.h"

namespace lintel {

// The tensors of a ModelInfer response, written from the tokens of its rows.

// The result of a row. If the request asks for them, each token has its log2-probability (NaN: it
// has none), and the k most likely ones of its position (-1 and NaN where there are none).
struct RowTokens {
  std::vector<std::int32_t> tokens;      // [length]
  std::string text;                      // of the tokens
  std::vector<float> log2_probs;         // [length]
  std::vector<std::int32_t> top_tokens;  // [length, k]
  std::vector<float> top_log2_probs;     // [length, k]
  std::vector<std::string> token_texts;  // [length], special tokens as they are spelt
  std::vector<std::uint8_t> special;     // [length], 1: it is a special token
  std::optional<FinishReason> reason;    // none: it continues
  std::int64_t position = 0;             // of the sequence after them
  std::int64_t restarts = 0;             // of the state, in a window
  std::optional<double> log2_evidence;   // of particles
};

// cut_bytes: as TokenEvent's.
void append_token(const TensorRequest& request, std::int32_t token, std::int32_t cut_bytes,
                  std::optional<float> log2_prob, std::span<const TopToken> top, RowTokens& row);

// Most bytes of a response whose rows have up to `longest` tokens, echoed ones included.
std::size_t most_response_bytes(const TensorRequest& request, std::int64_t longest);
// Writes the position, too, if the request has tells_position, and the window with the most
// restarts of any row. REQUIRES: there is a row.
void write_tensor_response(const TensorRequest& request, const std::vector<RowTokens>& rows,
                           inference::ModelInferResponse& wire);

// StreamedResponse: the tokens of one request of ModelStreamInfer, message by message.

// One message, filled again and again. Every one says whether it is the last, in the parameter
// triton_final_response. Used by one thread at a time.
class StreamedResponse {
 public:
  // `head` is what every message begins with.
  StreamedResponse(std::shared_ptr<const TensorRequest> request,
                   inference::ModelInferResponse head);

  // Fill the message. If they throw for want of memory, it can be filled again.
  void fill(std::span<const OutboxEntry> entries, bool is_last);
  void fill(const grpc::Status& error);  // the last: why there are no more
  const inference::ModelStreamInferResponse& message() const { return message_; }

 private:
  void clear();

  const std::shared_ptr<const TensorRequest> request_;
  std::vector<RowTokens> rows_ = std::vector<RowTokens>(1);
  inference::ModelStreamInferResponse message_;
};

// Marks a response as the last of its request, or not.
void mark_final(inference::ModelInferResponse& response, bool is_final);

// Threads: any.
class RowGatherer : public std::enable_shared_from_this<RowGatherer> {
 public:
  // Called once, when no row runs any more: the rows are whole if the status is OK. Must not throw.
  using OnDone =
      std::function<void(const grpc::Status&, std::vector<RowTokens> rows, TokenUse used)>;

  // request: the one whose rows are gathered.
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
    std::shared_ptr<ReplayedResponse> past;  // that is answered from instead
  };

  grpc::Status submit(std::size_t index, PreparedGeneration& row) noexcept EXCLUDES(mutex_);
  // index: of its prompt. samples: of that, or none where they came to nothing.
  void row_done(std::size_t index, std::vector<RowTokens> samples, TokenUse used,
                grpc::Status status) noexcept EXCLUDES(mutex_);
  // Ends all rows with `status`, the first one given.
  void fail(grpc::Status status) noexcept EXCLUDES(mutex_);

  const std::shared_ptr<const TensorRequest> request_;
  Mutex mutex_;
  OnDone on_done_ GUARDED_BY(mutex_);                // empty once called
  std::vector<Running> running_ GUARDED_BY(mutex_);  // one for each prompt
  std::vector<RowTokens> rows_ GUARDED_BY(mutex_);
  std::size_t rows_left_ GUARDED_BY(mutex_) = 0;  // prompts whose rows are not done
  TokenUse used_ GUARDED_BY(mutex_);
  grpc::Status status_ GUARDED_BY(mutex_);  // OK: no row has failed
};

}  // namespace lintel
