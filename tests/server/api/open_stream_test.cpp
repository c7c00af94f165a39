// SPDX-License-Identifier: Apache-2.0
// Calls whose work is done but whose client is not: they keep no model.
#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/support/repository_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr int kMany = 20'000;  // in messages of one token: more than a connection takes unread

// A connection whose window does not grow while it is not read.
std::shared_ptr<grpc::Channel> narrow_channel(TestServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
  return grpc::CreateCustomChannel(server.server().address(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

// A server with a model "second", and room for all that a call produces.
struct Fixture : RepositoryServer {
  Fixture()
      : RepositoryServer([](ServerOptions& options) { options.streaming.outbox_tokens = 100'000; }),
        channel(narrow_channel(*server)),
        inference(inference::GRPCInferenceService::NewStub(channel)) {
    write("second");
    REQUIRE(load("second").ok());
  }

  // All that was asked of the model is done.
  bool is_done() const {
    return eventually([this] {
      const Scheduler& scheduler = server->scheduler("second");
      return scheduler.stats().generated_tokens > 0 && scheduler.idle();
    });
  }
  // The drain has ten minutes: a call that keeps the model runs into this deadline.
  grpc::Status unload_now() const {
    v1::UnloadModelRequest request;
    request.set_name("second");
    v1::UnloadModelResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return admin->UnloadModel(&context, request, &response);
  }

  static inference::ModelInferRequest infer_request(int count, bool streams) {
    inference::ModelInferRequest request;
    request.set_model_name("second");
    auto& input = *request.add_inputs();
    input.set_name("tokens");
    input.set_datatype("INT32");
    input.add_shape(1);
    input.add_shape(1);
    input.mutable_contents()->add_int_contents(1);
    auto& parameters = *request.mutable_parameters();
    parameters["max_new_tokens"].set_int64_param(count);
    if (streams) {
      parameters["stream"].set_bool_param(true);
      parameters["max_tokens_per_message"].set_int64_param(1);
    }
    return request;
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<inference::GRPCInferenceService::Stub> inference;
};

TEST_CASE("a Generate call that is done but not read keeps no model, and loses nothing") {
  const Fixture f;
  const auto stub = v1::GenerationService::NewStub(f.channel);
  v1::GenerateRequest request = request_for("second", {1}, kMany);
  request.set_max_tokens_per_message(1);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  REQUIRE(f.is_done());
  CHECK(f.unload_now().ok());
  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    take_message(message, out);
    out.messages.clear();
  }
  CHECK(reader->Finish().ok());
  CHECK(out.only().tokens.size() == kMany);
  CHECK(out.only().finishes == 1);
}

TEST_CASE("a streamed inference that is done but not read keeps no model, and loses nothing") {
  const Fixture f;
  grpc::ClientContext context;
  const auto stream = f.inference->ModelStreamInfer(&context);
  REQUIRE(stream->Write(Fixture::infer_request(kMany, /*streams=*/true)));
  REQUIRE(f.is_done());
  CHECK(f.unload_now().ok());
  REQUIRE(stream->WritesDone());
  int count = 0;
  inference::ModelStreamInferResponse response;
  while (stream->Read(&response)) {
    CHECK(response.error_message() == "");
    count += response.infer_response().outputs(0).contents().int_contents_size();
  }
  CHECK(stream->Finish().ok());
  CHECK(count == kMany);
}

TEST_CASE("a stream of inferences keeps no model between its requests") {
  const Fixture f;
  grpc::ClientContext context;
  const auto stream = f.inference->ModelStreamInfer(&context);
  REQUIRE(stream->Write(Fixture::infer_request(3, /*streams=*/false)));
  inference::ModelStreamInferResponse response;
  REQUIRE(stream->Read(&response));
  REQUIRE(response.error_message() == "");
  CHECK(f.unload_now().ok());
  // The stream is still good for another.
  inference::ModelInferRequest other = Fixture::infer_request(3, false);
  other.set_model_name("tokens");
  REQUIRE(stream->Write(other));
  REQUIRE(stream->Read(&response));
  CHECK(response.error_message() == "");
  REQUIRE(stream->WritesDone());
  CHECK(!stream->Read(&response));
  CHECK(stream->Finish().ok());
}

}  // namespace
}  // namespace lintel::testing
