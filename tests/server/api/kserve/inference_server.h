// SPDX-License-Identifier: Apache-2.0
// InferenceServer: a server as a client sees it that knows the Open Inference Protocol only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "open_inference.grpc.pb.h"
#include "tests/cli/processes.h"
#include "tests/support/catch.h"

namespace lintel::testing {

// A server with the models "tokens" and "bytes", or others.
struct InferenceServer : ServerProcess {
  explicit InferenceServer(const std::vector<std::string>& flags = {},
                           const std::vector<TinyModel>& models = {TinyModel::kTokens,
                                                                   TinyModel::kBytes})
      : ServerProcess(models, flags),
        stub(inference::GRPCInferenceService::NewStub(
            grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()))) {}

  grpc::Status infer(const inference::ModelInferRequest& request,
                     inference::ModelInferResponse* response, const std::string& token = "") const {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    return stub->ModelInfer(&context, request, response);
  }
  // The output of `lintel generate`: the other protocol's answer to the same question.
  std::vector<int> generate(const std::string& prompt, int count, int seed) const {
    const Result result =
        lintel({"generate", "--model", "tokens", "--prompt-tokens", prompt, "--max-new-tokens",
                std::to_string(count), "--seed", std::to_string(seed), "--format", "jsonl"});
    INFO(result.err);
    REQUIRE(result.code == 0);
    return result.json()["tokens"].get<std::vector<int>>();
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
};

inline inference::ModelInferRequest request_of(const std::vector<std::vector<int>>& rows,
                                               int max_new_tokens, int seed = 7) {
  inference::ModelInferRequest request;
  request.set_model_name("tokens");
  auto& input = *request.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(static_cast<std::int64_t>(rows.size()));
  input.add_shape(static_cast<std::int64_t>(rows.front().size()));
  for (const auto& row : rows) {
    for (const int token : row) input.mutable_contents()->add_int_contents(token);
  }
  (*request.mutable_parameters())["max_new_tokens"].set_int64_param(max_new_tokens);
  (*request.mutable_parameters())["seed"].set_int64_param(seed);
  return request;
}

inline std::vector<int> tokens_of(const inference::ModelInferResponse& response) {
  const auto& contents = response.outputs(0).contents().int_contents();
  return {contents.begin(), contents.end()};
}

}  // namespace lintel::testing
