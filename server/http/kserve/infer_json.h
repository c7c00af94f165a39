// ModelInfer's messages as the Open Inference Protocol's REST has them
// (https://kserve.github.io/website/latest/modelserving/data_plane/v2_protocol/#inference).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "inference/grpc_service.pb.h"

namespace lintel {

// Reads an inference request, but for its model. Not empty: what is wrong with it.
std::string read_infer_request(nlohmann::json json, inference::ModelInferRequest& wire);
nlohmann::ordered_json infer_response_json(const inference::ModelInferResponse& wire);

// Reads each of an object's members as a parameter of that name. Not empty: what is wrong.
std::string read_infer_parameters(
    const nlohmann::json& json, const std::string& path,
    google::protobuf::Map<std::string, inference::InferParameter>& parameters);
// A tensor's values, all in one list; NaN is null. Bytes are text, with U+FFFD for what is no
// UTF-8.
nlohmann::ordered_json tensor_values(
    const inference::ModelInferResponse::InferOutputTensor& tensor);

}  // namespace lintel
