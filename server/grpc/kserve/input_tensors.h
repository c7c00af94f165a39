// The tensors of a ModelInfer request, typed or raw, read into rows.
#pragma once

#include "inference/grpc_service.pb.h"
#include "server/api/violations.h"
#include "server/grpc/kserve/request.h"

namespace lintel {

// Reads the prompts, at most `max_rows` of them, and the stop strings into `request`: what is wrong
// with a tensor is named by it.
void read_inputs(const inference::ModelInferRequest& wire, int max_rows, TensorRequest& request,
                 Violations& violations);

}  // namespace lintel
