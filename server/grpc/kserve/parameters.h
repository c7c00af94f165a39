// The parameters of a ModelInfer request.
#pragma once

#include "inference/grpc_service.pb.h"
#include "server/api/violations.h"
#include "server/grpc/kserve/request.h"

namespace lintel {

// Reads each by its name into `request`. What it asks for is checked where every Generate request
// is; here, that it is a parameter and has a value of its type and range.
void read_parameters(const inference::ModelInferRequest& wire, TensorRequest& request,
                     Violations& violations);

}  // namespace lintel
