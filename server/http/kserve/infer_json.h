// SPDX-License-Identifier: Apache-2.0
// ModelInfer's messages as the Open Inference Protocol's REST has them
// (https://kserve.github.io/website/latest/modelserving/data_plane/v2_protocol/#inference).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "inference/grpc_service.pb.h"
#include "model/core/utf8.h"
#include "server/http/encoding/json_bodies.h"

namespace lintel {

// Reads an inference request, but for its model. Not empty: what is wrong with it.
std::string read_infer_request(nlohmann::json json, inference::ModelInferRequest& wire);
// The response outlives the pieces.
JsonPieces infer_response_pieces(const inference::ModelInferResponse& wire);

// Triton's generate: an inference of one row as a flat object
// (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md).

// {"text_input" or "tokens", "stop", "outputs", "parameters": {...}}; any other member is a
// parameter. Not empty: what is wrong with it.
std::string read_generate_request(nlohmann::json json, inference::ModelInferRequest& wire);

// A response as {"model_name", "model_version", "text_output": ..., ...}, one after the other of a
// stream: a character that is not whole yet waits for the next. With the parameter `details` it has
// {"finish_reason", "logprobs": [TOKEN]}, in a stream {"finish_reason", "token": TOKEN}; a token is
// {"id", "text", "logprob", "special"}.
class GenerateJson {
 public:
  explicit GenerateJson(bool streams) : streams_(streams) {}
  // The response outlives the pieces.
  JsonPieces pieces(const inference::ModelInferResponse& wire, bool is_last);

 private:
  void add_details(const inference::ModelInferResponse& wire, const std::string& finish_reason,
                   JsonPieces& out) const;

  const bool streams_;
  Utf8Stream utf8_;
};

}  // namespace lintel
