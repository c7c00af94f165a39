// SPDX-License-Identifier: Apache-2.0
// Calls on sequences of the Open Inference Protocol, over gRPC and over REST.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/token_file.h"

namespace lintel::testing {

// The request of a call of the sequence "s" of the model "tokens".
struct SequenceCall {
  std::vector<int> prompt;
  int max_new_tokens = 0;
  nlohmann::json parameters = nlohmann::json::object();  // beside those
};

// The result; `error` says why there is none.
struct SequenceReply {
  std::vector<int> tokens;
  std::int64_t position = -1;
  grpc::Status status;  // over gRPC
  int http_status = 0;  // over REST
  std::string error;
};

inline nlohmann::json json_of(const SequenceCall& call) {
  nlohmann::json json = {{"tokens", call.prompt},
                         {"max_new_tokens", call.max_new_tokens},
                         {"seed", 7},
                         {"sequence_id", "s"}};
  json.update(call.parameters);
  return json;
}

inline inference::ModelInferRequest request_of(const SequenceCall& call) {
  inference::ModelInferRequest request;
  request.set_model_name("tokens");
  auto& input = *request.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.add_shape(static_cast<std::int64_t>(call.prompt.size()));
  for (const int token : call.prompt) input.mutable_contents()->add_int_contents(token);
  const nlohmann::json json = json_of(call);
  for (const auto& [name, value] : json.items()) {
    if (name == "tokens") continue;
    auto& parameter = (*request.mutable_parameters())[name];
    if (value.is_string()) parameter.set_string_param(value.get<std::string>());
    if (value.is_boolean()) parameter.set_bool_param(value.get<bool>());
    if (value.is_number()) parameter.set_int64_param(value.get<std::int64_t>());
  }
  return request;
}

inline SequenceReply infer(const std::shared_ptr<grpc::Channel>& channel, const SequenceCall& call,
                           const std::string& who = "") {
  SequenceReply reply;
  inference::ModelInferResponse response;
  grpc::ClientContext context;
  set_token(context, who);
  reply.status = inference::GRPCInferenceService::NewStub(channel)->ModelInfer(
      &context, request_of(call), &response);
  reply.error = reply.status.error_message();
  if (!reply.status.ok()) return reply;
  const auto& tokens = response.outputs(0).contents().int_contents();
  reply.tokens.assign(tokens.begin(), tokens.end());
  const auto position = response.parameters().find("lintel_position");
  if (position != response.parameters().end()) reply.position = position->second.int64_param();
  return reply;
}

inline SequenceReply generate_over_rest(int port, const SequenceCall& call,
                                        const std::string& who = "") {
  SequenceReply reply;
  const HttpReply http =
      post(port, "/v2/models/tokens/generate", json_of(call).dump(), "application/json",
           who.empty() ? "" : "Authorization: Bearer token-" + who + "\r\n");
  reply.http_status = http.status;
  const nlohmann::json json = nlohmann::json::parse(http.body, nullptr, false);
  if (json.contains("error")) reply.error = json["error"];
  if (json.contains("tokens")) reply.tokens = json["tokens"].get<std::vector<int>>();
  if (json.contains("lintel_position")) reply.position = json["lintel_position"];
  return reply;
}

}  // namespace lintel::testing
