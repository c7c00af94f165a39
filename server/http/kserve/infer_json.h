// SPDX-License-Identifier: Apache-2.0
// ModelInfer's messages as the Open Inference Protocol's REST has them
// (https://kserve.github.io/website/latest/modelserving/data_plane/v2_protocol/#inference).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "inference/grpc_service.pb.h"
#include "server/http/encoding/utf8_text.h"

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

// Triton's generate: an inference of one row as a flat object
// (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md).

// {"text_input" or "tokens", "stop", "outputs", "parameters": {...}}; any other member is a
// parameter. Not empty: what is wrong with it.
std::string read_generate_request(nlohmann::json json, inference::ModelInferRequest& wire);

// A response as {"model_name", "model_version", "text_output": ..., ...}, one after the other of a
// stream: a character that is not whole yet waits for the next.
class GenerateJson {
 public:
  std::string of(const inference::ModelInferResponse& wire, bool is_last);

 private:
  Utf8Text utf8_;
};

}  // namespace lintel
