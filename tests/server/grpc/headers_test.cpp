// SPDX-License-Identifier: Apache-2.0
// What is refused by a call's headers, before a message of it is read.
#include "tests/server/support/generic_call.h"
#include "tests/server/support/service_fixture.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

// The end of a call whose client sends its headers and then waits.
grpc::Status end_of_headers_alone(TestServer& server, const char* method,
                                  grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  return GenericCall(server.channel(), method, context).finish();
}

TEST_CASE("calls without a valid token are refused by their headers, before a message is held",
          "[threat-25]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  for (const char* const method :
       {"/lintel.v1.GenerationService/Generate", "/lintel.v1.SessionService/Create",
        "/inference.GRPCInferenceService/ModelInfer", "/no.such/Method"}) {
    INFO(method);
    grpc::ClientContext anonymous, unknown;
    CHECK(end_of_headers_alone(server, method, anonymous).error_code() == Code::UNAUTHENTICATED);
    unknown.AddMetadata("authorization", "Bearer 0123456789abcdef0123456789abcdef");
    CHECK(end_of_headers_alone(server, method, unknown).error_code() == Code::UNAUTHENTICATED);
  }
}

// gRPC inflates a message before it looks at its size: 16 MiB can become 16 GiB.
TEST_CASE("compressed messages are refused by the headers, before they are inflated",
          "[threat-47]") {
  TestServer server({"tokens"});
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const grpc::Status status =
        end_of_headers_alone(server, "/lintel.v1.GenerationService/Generate", context);
    CHECK(status.error_code() == Code::UNIMPLEMENTED);
    CHECK_THAT(status.error_message(), Catch::Contains("ompression"));
  }
  CHECK(generate(server, request_for("tokens", {1}, 3)).status.ok());
}

// gRPC closes the connection of a client whose headers are too large when they come in several
// reads. That client opens another one; those of others are not touched.
TEST_CASE("headers beyond their bound are refused, and the server continues", "[threat-25]") {
  ServerOptions options = test_options();
  options.connections.max_metadata_bytes = 4096;
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  const auto others =
      grpc::CreateCustomChannel(server.server().address(), grpc::InsecureChannelCredentials(), [] {
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
        return arguments;
      }());
  grpc::ClientContext context;
  const auto stream =
      v1::GenerationService::NewStub(others)->Generate(&context, request_for("tokens", {1}, 5));
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().queued == 1; }));

  // gRPC's own bound is 8 KiB.
  v1::ListModelsResponse response;
  grpc::ClientContext large;
  large.AddMetadata("x-large", std::string(6000, 'x'));
  CHECK(server.models->List(&large, {}, &response).error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(eventually([&] {
    grpc::ClientContext small;
    small.AddMetadata("x-large", std::string(1000, 'x'));
    return server.models->List(&small, {}, &response).ok();
  }));

  run_until_idle(server.scheduler("tokens"));
  v1::GenerateResponse message;
  while (stream->Read(&message)) {
  }
  CHECK(stream->Finish().ok());
}

TEST_CASE("a stream's headers come once its request is in the queue; trailers are as they were") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 1;
  TestServer server({"tokens"}, options);
  const auto begin = [&](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return server.generation->Generate(&context, request_for("tokens", {1}, 5));
  };
  grpc::ClientContext waiting, refused;
  const auto stream = begin(waiting);
  stream->WaitForInitialMetadata();
  CHECK(server.scheduler("tokens").stats().queued == 1);
  CHECK(waiting.GetServerInitialMetadata().contains("x-request-id"));
  const auto none = begin(refused);
  v1::GenerateResponse message;
  CHECK_FALSE(none->Read(&message));
  CHECK(none->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);

  SECTION("the request runs") {
    run_until_idle(server.scheduler("tokens"));
    while (stream->Read(&message)) {
    }
    CHECK(stream->Finish().ok());
  }
  SECTION("the request fails") {
    server.scheduler("tokens").stop();
    while (stream->Read(&message)) {
    }
    CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  }
  SECTION("its client goes") {
    waiting.TryCancel();
    CHECK(stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
    run_until_idle(server.scheduler("tokens"));
    CHECK(server.scheduler("tokens").stats().queued == 0);
  }
}

TEST_CASE("headers within their bound are taken, also where it is wider than gRPC's own") {
  TestServer server({"tokens"});  // 16 KiB
  v1::ListModelsResponse response;
  grpc::ClientContext large;
  large.AddMetadata("x-large", std::string(12'000, 'x'));
  CHECK(server.models->List(&large, {}, &response).ok());
}

}  // namespace
}  // namespace lintel::testing
