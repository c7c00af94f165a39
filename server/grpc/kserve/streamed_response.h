// StreamedResponse: the values of one request of ModelStreamInfer, message by message.
#pragma once

#include <grpcpp/support/status.h>

#include <memory>
#include <span>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/api/token_outbox.h"
#include "server/grpc/kserve/output_tensors.h"
#include "server/grpc/kserve/request.h"

namespace lintel {

// One message, filled again and again. Every one says whether it is the last, in the parameter
// triton_final_response. Used by one thread at a time.
class StreamedResponse {
 public:
  // `head` is what every message begins with.
  StreamedResponse(std::shared_ptr<const TensorRequest> request,
                   inference::ModelInferResponse head);

  // What they throw for want of memory leaves a message that can be filled again.
  void fill(std::span<const OutboxEntry> entries, bool is_last);
  void fill(const grpc::Status& error);  // the last: why there are no more
  const inference::ModelStreamInferResponse& message() const { return message_; }

 private:
  void clear();

  const std::shared_ptr<const TensorRequest> request_;
  std::vector<RowValues> rows_ = std::vector<RowValues>(1);
  inference::ModelStreamInferResponse message_;
};

// Marks a response as the last of its request, or not.
void mark_final(inference::ModelInferResponse& response, bool is_final);

}  // namespace lintel
