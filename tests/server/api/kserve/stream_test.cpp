// SPDX-License-Identifier: Apache-2.0
// ModelStreamInfer with many responses to a request: tokens as they come.
#include <grpcpp/grpcpp.h>

#include <thread>
#include <utility>

#include "open_inference.grpc.pb.h"
#include "tests/cli/processes.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using Request = inference::ModelInferRequest;
using Response = inference::ModelStreamInferResponse;
using Catch::Matchers::Contains;

Request request_of(const std::vector<int>& prompt, int max_new_tokens, bool streams) {
  Request request;
  request.set_model_name("tokens");
  auto& input = *request.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.add_shape(static_cast<std::int64_t>(prompt.size()));
  for (const int token : prompt) input.mutable_contents()->add_int_contents(token);
  auto& parameters = *request.mutable_parameters();
  parameters["max_new_tokens"].set_int64_param(max_new_tokens);
  parameters["seed"].set_int64_param(7);
  if (streams) parameters["stream"].set_bool_param(true);
  return request;
}

// A line a call would fill the pipe, which is not read while the test polls.
std::vector<std::string> quiet(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--log-level", "error"});
  return flags;
}

struct Server : ServerProcess {
  explicit Server(std::vector<std::string> flags = {})
      : ServerProcess({TinyModel::kTokens}, quiet(std::move(flags))),
        stub(inference::GRPCInferenceService::NewStub(new_channel())) {}

  // A channel whose receive buffer for unread bytes stays small.
  std::shared_ptr<grpc::Channel> new_channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  }

  // The tokens of ModelInfer, in one response.
  std::vector<int> infer(Request request) const {
    request.mutable_parameters()->erase("stream");
    request.mutable_parameters()->erase("max_tokens_per_message");
    inference::ModelInferResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub->ModelInfer(&context, request, &response);
    INFO(status.error_message());
    REQUIRE(status.ok());
    const auto& contents = response.outputs(0).contents().int_contents();
    return {contents.begin(), contents.end()};
  }
  inference::ModelStatistics statistics() const {
    grpc::ClientContext context;
    inference::ModelStatisticsResponse response;
    REQUIRE(stub->ModelStatistics(&context, {}, &response).ok());
    return response.model_stats(0);
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
};

struct Stream {
  explicit Stream(const Server& server) : stream(server.stub->ModelStreamInfer(&context)) {}

  struct Got {
    std::vector<int> tokens;
    std::vector<float> log2_probs;
    int responses = 0;
    int largest = 0;  // tokens of a response
    std::string error;
    std::string id;
  };
  // Reads to the response that is marked as the last of its request.
  Got read() {
    Got got;
    Response response;
    bool last = false;
    while (!last) {
      REQUIRE(stream->Read(&response));
      const auto& infer = response.infer_response();
      REQUIRE(infer.parameters().contains("triton_final_response"));
      last = infer.parameters().at("triton_final_response").bool_param();
      ++got.responses;
      got.error = response.error_message();
      got.id = infer.id();
      if (!got.error.empty()) continue;
      CHECK(infer.model_name() == "tokens");
      CHECK(infer.model_version() == "1");
      CHECK(infer.outputs(0).shape(0) == 1);
      const auto& tokens = infer.outputs(0).contents().int_contents();
      CHECK(infer.outputs(0).shape(1) == tokens.size());
      got.tokens.insert(got.tokens.end(), tokens.begin(), tokens.end());
      got.largest = std::max(got.largest, tokens.size());
      if (infer.outputs_size() < 2) continue;
      const auto& probs = infer.outputs(1).contents().fp32_contents();
      got.log2_probs.insert(got.log2_probs.end(), probs.begin(), probs.end());
    }
    return got;
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream;
};

}  // namespace

TEST_CASE(
    "a streamed request returns the tokens of one that is not, in pieces, the last one marked") {
  const Server server;
  Stream stream(server);
  for (const int each : {0, 1, 3}) {
    INFO("at most " << each);
    Request request = request_of({1, 2, 3}, 50, /*streams=*/true);
    request.set_id("r" + std::to_string(each));
    (*request.mutable_parameters())["max_tokens_per_message"].set_int64_param(each);
    request.add_outputs()->set_name("tokens");
    request.add_outputs()->set_name("log2_probs");
    REQUIRE(stream.stream->Write(request));
    const Stream::Got got = stream.read();
    CHECK(got.error.empty());
    CHECK(got.id == request.id());
    CHECK(got.tokens == server.infer(request));
    REQUIRE(got.log2_probs.size() == 50);
    for (const float value : got.log2_probs) CHECK(value < 0);
    if (each > 0) CHECK(got.largest <= each);
    if (each == 1) CHECK(got.responses >= 50);
  }
  // Without it there is one response, and nothing is marked.
  REQUIRE(stream.stream->Write(request_of({1, 2, 3}, 50, /*streams=*/false)));
  Response response;
  REQUIRE(stream.stream->Read(&response));
  CHECK(response.infer_response().outputs(0).shape(1) == 50);
  CHECK(response.infer_response().parameters().empty());
  // Unless it asks for that.
  Request marked = request_of({1}, 2, /*streams=*/false);
  (*marked.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  REQUIRE(stream.stream->Write(marked));
  CHECK(stream.read().tokens.size() == 2);
  stream.stream->WritesDone();
  CHECK_FALSE(stream.stream->Read(&response));
  CHECK(stream.stream->Finish().ok());
}

TEST_CASE("streamed requests are answered one after the other, and an error ends its own only") {
  const Server server;
  Stream stream(server);
  std::vector<std::vector<int>> expected;
  for (int i = 0; i < 6; ++i) {
    Request request = request_of({i}, 20, /*streams=*/true);
    request.set_id(std::to_string(i));
    expected.push_back(server.infer(request));
    if (i % 2 == 1) request.set_model_name("nosuch");
    REQUIRE(stream.stream->Write(request));
  }
  for (int i = 0; i < 6; ++i) {
    const Stream::Got got = stream.read();
    CHECK(got.id == std::to_string(i));
    CHECK(got.error.empty() == (i % 2 == 0));
    if (i % 2 == 0) CHECK(got.tokens == expected[static_cast<std::size_t>(i)]);
  }
  Request two = request_of({1, 2}, 3, /*streams=*/true);
  two.mutable_inputs(0)->set_shape(0, 2);
  two.mutable_inputs(0)->set_shape(1, 1);
  REQUIRE(stream.stream->Write(two));
  CHECK_THAT(stream.read().error, Contains("one row"));
  Request nothing = request_of({1, 2}, 0, /*streams=*/true);
  REQUIRE(stream.stream->Write(nothing));
  CHECK(stream.read().tokens.empty());

  inference::ModelInferResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      server.stub->ModelInfer(&context, request_of({1}, 3, /*streams=*/true), &response);
  CHECK(status.error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(status.error_message(), Contains("parameters[stream]"));
}

TEST_CASE("a sequence continues from stream to stream") {
  const Server server;
  const std::vector<int> whole = server.infer(request_of({1, 2}, 30, false));
  Stream stream(server);
  std::vector<int> tokens;
  for (int i = 0; i < 3; ++i) {
    Request request = request_of(i == 0 ? std::vector<int>{1, 2} : std::vector<int>{}, 10, true);
    auto& parameters = *request.mutable_parameters();
    parameters["sequence_id"].set_uint64_param(7);
    if (i == 0) parameters["sequence_start"].set_bool_param(true);
    if (i == 2) parameters["sequence_end"].set_bool_param(true);
    REQUIRE(stream.stream->Write(request));
    const Stream::Got got = stream.read();
    INFO(got.error);
    tokens.insert(tokens.end(), got.tokens.begin(), got.tokens.end());
  }
  CHECK(tokens == whole);
  CHECK(server.lintel({"session", "list", "--json"}).json().empty());
}

TEST_CASE("a streamed request that is cancelled ends and frees its memory") {
  Server server({"--max-new-tokens", "1000000000"});
  for (int i = 1; i <= 5; ++i) {
    Stream stream(server);
    REQUIRE(stream.stream->Write(request_of({1}, 1'000'000'000, /*streams=*/true)));
    Response response;
    for (int k = 0; k < i; ++k) REQUIRE(stream.stream->Read(&response));
    stream.context.TryCancel();
    while (stream.stream->Read(&response)) {
    }
    CHECK(stream.stream->Finish().error_code() == Code::CANCELLED);
    std::uint64_t failed = 0;
    while (failed < static_cast<std::uint64_t>(i)) {  // until the server has noticed
      failed = server.statistics().inference_stats().fail().count();
    }
  }
  CHECK(server.stop() == 0);  // the drain waits for nothing that still runs
}

TEST_CASE("a slow reader of a streamed request pauses it and loses nothing") {
  const Server server({"--outbox-tokens", "64"});
  constexpr int kCount = 20'000;
  Request request = request_of({1, 2}, kCount, /*streams=*/true);
  (*request.mutable_parameters())["max_tokens_per_message"].set_int64_param(1);
  Stream stream(server);
  REQUIRE(stream.stream->Write(request));
  // Unread, it comes to a stop before its end: then nothing is executed any more.
  std::uint64_t executed = 1, before = 0;
  for (int same = 0; same < 50;) {
    before = std::exchange(executed, server.statistics().execution_count());
    same = executed > 0 && executed == before ? same + 1 : 0;
  }
  CHECK(server.statistics().inference_count() == 0);
  CHECK(server.infer(request_of({5}, 10, false)).size() == 10);  // others continue
  CHECK(stream.read().tokens == server.infer(request));
}

TEST_CASE("a streamed request that the drain ends has the error in its last response") {
  Server server({"--drain-timeout", "1ms", "--max-new-tokens", "1000000000"});
  Stream stream(server);
  REQUIRE(stream.stream->Write(request_of({1}, 1'000'000'000, /*streams=*/true)));
  Response response;
  REQUIRE(stream.stream->Read(&response));
  int code = -1;
  std::thread stopping([&] { code = server.stop(); });
  bool last = false;
  while (!last && stream.stream->Read(&response)) {
    last = response.infer_response().parameters().at("triton_final_response").bool_param();
  }
  CHECK(last);
  CHECK_THAT(response.error_message(), Contains("shutting down"));
  CHECK_FALSE(stream.stream->Read(&response));
  CHECK_FALSE(stream.stream->Finish().ok());
  stopping.join();
  CHECK(code == 0);
}

}  // namespace lintel::testing
