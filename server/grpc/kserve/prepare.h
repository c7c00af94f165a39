// From a ModelInfer request on the wire to one that is ready to run.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/api/prepare_generation.h"
#include "server/api/service_context.h"
#include "server/grpc/kserve/sequences.h"
#include "server/grpc/kserve/unary_call.h"
#include "server/grpc/transport/stream_call.h"

namespace lintel {

// A request that is ready to run.
struct PreparedInference {
  std::shared_ptr<const TensorRequest> request;
  ClientSequence sequence;
  std::vector<PreparedGeneration> rows;  // none: the request only ended its sequence, which is done
  inference::ModelInferResponse head;    // what every response begins with
  std::int64_t position = 0;             // of a sequence that was only ended
};

// What a request needs is checked and taken. Only where it `may_stream` can it ask for more than
// one response.
grpc::Status prepare_inference(const ServiceContext& context, ClientSequences& sequences,
                               const grpc::CallbackServerContext& call,
                               const inference::ModelInferRequest& wire, StreamCall& stream,
                               bool may_stream, PreparedInference& infer);

// The one response of a request without rows.
void write_end(const PreparedInference& infer, inference::ModelInferResponse& response);

// Runs it for one response, which is written when the run is done, before `on_done`; `sequences`,
// the response and what `on_done` needs outlive it.
std::shared_ptr<RowGatherer> new_row_gatherer(
    ClientSequences& sequences, const PreparedInference& infer,
    inference::ModelInferResponse& response,
    std::function<void(const grpc::Status&, ValueUse used)> on_done);

}  // namespace lintel
