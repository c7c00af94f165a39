// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol, as a client sees it that knows nothing of lintel.v1.
#include <cmath>
#include <cstring>

#include "tests/server/api/kserve/inference_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using Request = inference::ModelInferRequest;
using Response = inference::ModelInferResponse;

void make_raw(Request& request) {
  auto& input = *request.mutable_inputs(0);
  std::vector<std::int32_t> tokens(input.contents().int_contents().begin(),
                                   input.contents().int_contents().end());
  request.add_raw_input_contents(tokens.data(), tokens.size() * sizeof(std::int32_t));
  input.clear_contents();
}

}  // namespace

TEST_CASE("a server, its models and their tensors are described") {
  const InferenceServer server;
  auto& stub = *server.stub;
  {
    grpc::ClientContext context;
    inference::ServerLiveResponse live;
    REQUIRE(stub.ServerLive(&context, {}, &live).ok());
    CHECK(live.live());
  }
  {
    grpc::ClientContext context;
    inference::ServerReadyResponse ready;
    REQUIRE(stub.ServerReady(&context, {}, &ready).ok());
    CHECK(ready.ready());
  }
  const auto model_ready = [&](const std::string& name, const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    grpc::ClientContext context;
    inference::ModelReadyResponse ready;
    REQUIRE(stub.ModelReady(&context, request, &ready).ok());
    return ready.ready();
  };
  CHECK(model_ready("tokens", ""));
  CHECK(model_ready("tokens", "1"));
  CHECK_FALSE(model_ready("tokens", "2"));
  CHECK_FALSE(model_ready("nosuch", ""));
  {
    grpc::ClientContext context;
    inference::ServerMetadataResponse metadata;
    REQUIRE(stub.ServerMetadata(&context, {}, &metadata).ok());
    CHECK(metadata.name() == "lintel");
    CHECK_FALSE(metadata.version().empty());
  }
  {
    grpc::ClientContext context;
    inference::ModelMetadataRequest request;
    request.set_name("tokens");
    inference::ModelMetadataResponse metadata;
    REQUIRE(stub.ModelMetadata(&context, request, &metadata).ok());
    CHECK(metadata.name() == "tokens");
    CHECK(metadata.versions(0) == "1");
    REQUIRE(metadata.inputs_size() == 1);
    CHECK(metadata.inputs(0).name() == "tokens");
    CHECK(metadata.inputs(0).datatype() == "INT32");
    CHECK(metadata.inputs(0).shape_size() == 2);
    REQUIRE(metadata.outputs_size() >= 2);
    CHECK(metadata.outputs(1).name() == "log2_probs");
    CHECK(metadata.outputs(1).datatype() == "FP32");
    grpc::ClientContext second;
    request.set_name("nosuch");
    CHECK(stub.ModelMetadata(&second, request, &metadata).error_code() == Code::NOT_FOUND);
  }
  {
    grpc::ClientContext context;
    inference::RepositoryIndexResponse index;
    REQUIRE(stub.RepositoryIndex(&context, {}, &index).ok());
    REQUIRE(index.models_size() == 2);
    CHECK(index.models(0).name() == "bytes");
    CHECK(index.models(0).state() == "READY");
  }
}

TEST_CASE("ModelInfer gives the tokens that Generate gives, row by row, typed and raw") {
  const InferenceServer server;
  Request request = request_of({{1, 2, 3}, {4, 5, 6}}, 6);
  request.set_id("mine");
  std::vector<int> expected = server.generate("1,2,3", 6, 7);
  const std::vector<int> second = server.generate("4,5,6", 6, 8);  // seed + row
  expected.insert(expected.end(), second.begin(), second.end());

  Response typed;
  const grpc::Status status = server.infer(request, &typed);
  INFO(status.error_message());
  REQUIRE(status.ok());
  CHECK(typed.model_name() == "tokens");
  CHECK(typed.model_version() == "1");
  CHECK(typed.id() == "mine");
  REQUIRE(typed.outputs_size() == 1);
  CHECK(typed.outputs(0).name() == "tokens");
  CHECK(typed.outputs(0).datatype() == "INT32");
  REQUIRE(typed.outputs(0).shape_size() == 2);
  CHECK(typed.outputs(0).shape(0) == 2);
  CHECK(typed.outputs(0).shape(1) == 6);
  CHECK(tokens_of(typed) == expected);
  CHECK(typed.raw_output_contents_size() == 0);

  request.add_outputs()->set_name("tokens");
  request.add_outputs()->set_name("log2_probs");
  make_raw(request);
  Response raw;
  REQUIRE(server.infer(request, &raw).ok());
  REQUIRE(raw.raw_output_contents_size() == 2);
  std::vector<std::int32_t> tokens(12);
  REQUIRE(raw.raw_output_contents(0).size() == 48);
  std::memcpy(tokens.data(), raw.raw_output_contents(0).data(), 48);
  CHECK(std::vector<int>(tokens.begin(), tokens.end()) == expected);
  REQUIRE(raw.raw_output_contents(1).size() == 48);
  std::vector<float> log2_probs(12);
  std::memcpy(log2_probs.data(), raw.raw_output_contents(1).data(), 48);
  for (const float value : log2_probs) CHECK(value < 0);
  CHECK_FALSE(raw.outputs(0).has_contents());
}

TEST_CASE("parameters carry sampling, as numbers of any form") {
  const InferenceServer server;
  Request request = request_of({{1}}, 8);
  auto& parameters = *request.mutable_parameters();
  parameters["temperature"].set_double_param(0);
  Response greedy, same;
  REQUIRE(server.infer(request, &greedy).ok());
  parameters["temperature"].set_string_param("0");
  parameters["seed"].set_uint64_param(12345);
  parameters["max_new_tokens"].set_string_param("8");
  REQUIRE(server.infer(request, &same).ok());
  CHECK(tokens_of(same) == tokens_of(greedy));
  parameters.erase("temperature");
  parameters["top_k"].set_int64_param(1);
  REQUIRE(server.infer(request, &same).ok());
  CHECK(tokens_of(same) == tokens_of(greedy));
}

TEST_CASE("a stream answers request after request, and an error is an answer") {
  const InferenceServer server;
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  const std::vector<int> whole = server.generate("1,2", 6, 7);
  std::vector<int> tokens;
  inference::ModelStreamInferResponse response;
  for (int i = 0; i < 6; ++i) {
    Request request = request_of({i == 0 ? std::vector<int>{1, 2} : std::vector<int>{}}, 1);
    request.set_id("r" + std::to_string(i));
    auto& parameters = *request.mutable_parameters();
    parameters["sequence_id"].set_uint64_param(7);
    if (i == 0) parameters["sequence_start"].set_bool_param(true);
    if (i == 5) parameters["sequence_end"].set_bool_param(true);
    REQUIRE(stream->Write(request));
    REQUIRE(stream->Read(&response));
    INFO(response.error_message());
    REQUIRE(response.error_message().empty());
    CHECK(response.infer_response().id() == request.id());
    const std::vector<int> now = tokens_of(response.infer_response());
    tokens.insert(tokens.end(), now.begin(), now.end());

    Request wrong = request;
    wrong.set_model_name("nosuch");
    REQUIRE(stream->Write(wrong));
    REQUIRE(stream->Read(&response));
    CHECK_THAT(response.error_message(), Catch::Contains("nosuch"));
    CHECK(response.infer_response().id() == request.id());
  }
  CHECK(tokens == whole);
  // Requests written without waiting for answers, which come in order.
  for (int i = 1; i <= 20; ++i) {
    Request request = request_of({{i}}, 2);
    request.set_id(std::to_string(i));
    REQUIRE(stream->Write(request));
  }
  stream->WritesDone();
  for (int i = 1; i <= 20; ++i) {
    REQUIRE(stream->Read(&response));
    CHECK(response.infer_response().id() == std::to_string(i));
  }
  CHECK_FALSE(stream->Read(&response));
  CHECK(stream->Finish().ok());
}

TEST_CASE("a stream that is cancelled while it runs frees its memory") {
  InferenceServer server({"--max-new-tokens", "1000000000"});
  {
    grpc::ClientContext context;
    const auto stream = server.stub->ModelStreamInfer(&context);
    REQUIRE(stream->Write(request_of({{1}}, 1)));
    inference::ModelStreamInferResponse response;
    REQUIRE(stream->Read(&response));
    REQUIRE(stream->Write(request_of({{1}}, 1'000'000'000)));
    context.TryCancel();
    CHECK(stream->Finish().error_code() == Code::CANCELLED);
  }
  CHECK(server.stop() == 0);  // the drain waits for nothing that still runs
}

TEST_CASE("a drain does not wait for a stream between its requests") {
  InferenceServer server({"--drain-timeout", "10m"});
  grpc::ClientContext context;
  const auto stream = server.stub->ModelStreamInfer(&context);
  REQUIRE(stream->Write(request_of({{1}}, 1)));
  inference::ModelStreamInferResponse response;
  REQUIRE(stream->Read(&response));
  CHECK(server.stop() == 0);
  CHECK_FALSE(stream->Read(&response));
  CHECK_FALSE(stream->Finish().ok());
}

TEST_CASE("a request that does not fit the protocol is refused by the field's name") {
  const InferenceServer server;
  const auto refusal = [&](const std::function<void(Request&)>& change) {
    Request request = request_of({{1, 2}}, 3);
    change(request);
    Response response;
    const grpc::Status status = server.infer(request, &response);
    CHECK(
        (status.error_code() == Code::INVALID_ARGUMENT || status.error_code() == Code::NOT_FOUND));
    return status.error_message();
  };
  const auto parameter = [](const char* name, const std::string& text) {
    return [=](Request& r) { (*r.mutable_parameters())[name].set_string_param(text); };
  };
  CHECK_THAT(refusal([](Request& r) { r.set_model_name("nosuch"); }), Catch::Contains("nosuch"));
  CHECK_THAT(refusal([](Request& r) { r.set_model_name(""); }), Catch::Contains("model_name"));
  CHECK_THAT(refusal([](Request& r) { r.set_model_version("2"); }),
             Catch::Contains("model_version"));
  CHECK_THAT(refusal([](Request& r) { r.clear_inputs(); }), Catch::Contains("inputs"));
  CHECK_THAT(refusal([](Request& r) { r.mutable_inputs(0)->set_name("x"); }),
             Catch::Contains("tokens"));
  CHECK_THAT(refusal([](Request& r) { r.mutable_inputs(0)->set_datatype("FP32"); }),
             Catch::Contains("datatype"));
  CHECK_THAT(refusal([](Request& r) { r.mutable_inputs(0)->set_shape(1, 3); }),
             Catch::Contains("shape"));
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 62}) {
    CHECK_THAT(refusal([n](Request& r) { r.mutable_inputs(0)->set_shape(0, n); }),
               Catch::Contains("shape"));
    CHECK_THAT(refusal([n](Request& r) { r.mutable_inputs(0)->set_shape(1, n + 5); }),
               Catch::Contains("shape"));
  }
  CHECK_THAT(refusal([](Request& r) { r.mutable_inputs(0)->add_shape(1); }),
             Catch::Contains("shape"));
  CHECK_THAT(refusal([](Request& r) { r.add_raw_input_contents("abc"); }),
             Catch::Contains("raw_input_contents"));
  CHECK_THAT(refusal([](Request& r) { r.add_outputs()->set_name("logits"); }),
             Catch::Contains("logits"));
  CHECK_THAT(
      refusal([](Request& r) {
        (*r.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("x");
      }),
      Catch::Contains("inputs[0].parameters[shared_memory_region]"));
  CHECK_THAT(refusal([](Request& r) {
               auto& output = *r.add_outputs();
               output.set_name("tokens");
               (*output.mutable_parameters())["classification"].set_int64_param(3);
             }),
             Catch::Contains("outputs[0].parameters[classification]"));
  CHECK_THAT(refusal(parameter("max_tokens", "5")), Catch::Contains("sequence_start"));
  // 32 rows of a million tokens would not fit a response: refused before a token is computed.
  CHECK_THAT(refusal([](Request& r) {
               r = request_of(std::vector<std::vector<int>>(32, {1}), 1'000'000);
             }),
             Catch::Contains("parameters[max_new_tokens]") && Catch::Contains("67108864"));
  CHECK_THAT(refusal(parameter("temprature", "1")), Catch::Contains("temprature"));
  CHECK_THAT(refusal(parameter("temperature", "hot")), Catch::Contains("temperature"));
  CHECK_THAT(refusal(parameter("temperature", "-1")), Catch::Contains("temperature"));
  CHECK_THAT(refusal(parameter("max_new_tokens", "-1")), Catch::Contains("max_new_tokens"));
  CHECK_THAT(
      refusal([](Request& r) { (*r.mutable_parameters())["sequence_start"].set_bool_param(true); }),
      Catch::Contains("sequence_id"));
  CHECK_THAT(refusal([](Request& r) {
               r = request_of({{1}, {2}}, 3);
               (*r.mutable_parameters())["sequence_id"].set_int64_param(1);
               (*r.mutable_parameters())["sequence_start"].set_bool_param(true);
             }),
             Catch::Contains("one row"));
  CHECK_THAT(
      refusal([](Request& r) { r.mutable_inputs(0)->mutable_contents()->set_int_contents(0, 50); }),
      Catch::Contains("49"));
}

}  // namespace lintel::testing
