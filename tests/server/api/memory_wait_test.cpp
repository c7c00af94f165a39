// SPDX-License-Identifier: Apache-2.0
// Calls for which there is no session memory now: they wait, and each protocol says how that ended.
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

constexpr int kNewTokens = 20;

// Memory for so many calls of one prompt token and kNewTokens.
ServerOptions with_memory_for(std::size_t calls, milliseconds most_wait) {
  ServerOptions options = with_http();
  options.models.scheduling.speculation = Speculation::kOff;
  const std::size_t each =
      SessionManager::admitted_bytes(*tiny_models({"bytes"}).at("bytes"), 0) + kNewTokens * 64;
  options.sessions.session_memory_bytes = calls * each;
  options.sessions.max_queue_wait = most_wait;
  return options;
}

v1::GenerateRequest seeded_request(int seed) {
  v1::GenerateRequest request = request_for("bytes", {seed}, kNewTokens);
  request.mutable_sampling()->set_seed(static_cast<std::uint64_t>(seed));
  return request;
}

TEST_CASE("32 calls at once in the memory of four are all answered, with the bits of one alone") {
  constexpr int kCalls = 32;
  TestServer server({"bytes"}, with_memory_for(4, std::chrono::minutes(10)));
  TestServer roomy({"bytes"});
  std::vector<Generated> answers(kCalls);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([&, i] { answers[i] = generate(server, seeded_request(i)); });
  }
  for (std::thread& caller : callers) caller.join();
  for (int i = 0; i < kCalls; ++i) {
    INFO(i << ": " << answers[i].status.error_message());
    REQUIRE(answers[i].status.ok());
    CHECK(answers[i].only().tokens == generate(roomy, seeded_request(i)).only().tokens);
  }
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == 0; }));
  CHECK(server.server().store().waiting().waiting == 0);
}

// A server whose memory another call has.
struct FullServer : TestServer {
  explicit FullServer(milliseconds most_wait)
      : TestServer({"bytes"}, with_memory_for(1, most_wait)) {
    held = server()
               .store()
               .lease_one_shot("other", tiny_models({"bytes"}).at("bytes"), kNewTokens, 1)
               .lease;
    REQUIRE(held);
  }
  bool waits() { return server().store().waiting().waiting == 1; }
  SessionLease held;
};

void check_refused(const grpc::Status& status) {
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(status));
  CHECK_THAT(status.error_message(), Contains("--max-queue-wait"));
}

TEST_CASE(
    "a call that waited in vain is refused with a time to retry, in the form of its protocol") {
  FullServer f(milliseconds(100));
  check_refused(generate(f, seeded_request(1)).status);
  {
    const auto stub = inference::GRPCInferenceService::NewStub(f.channel());
    grpc::ClientContext context;
    inference::ModelInferRequest request;
    request.set_model_name("bytes");
    auto& input = *request.add_inputs();
    input.set_name("tokens");
    input.set_datatype("INT32");
    input.add_shape(1);
    input.add_shape(1);
    input.mutable_contents()->add_int_contents(1);
    (*request.mutable_parameters())["max_new_tokens"].set_int64_param(kNewTokens);
    inference::ModelInferResponse response;
    check_refused(stub->ModelInfer(&context, request, &response));
  }
  const int port = f.server().http_port();
  nlohmann::json body = {{"model", "bytes"}, {"prompt", "x"}, {"max_tokens", kNewTokens}};
  const HttpReply whole = post(port, "/v1/completions", body.dump());
  INFO(whole.body);
  CHECK(whole.status == 429);
  CHECK(whole.header("retry-after") == "1");
  body["stream"] = true;
  const HttpReply streamed = post(port, "/v1/completions", body.dump());
  CHECK(streamed.status == 200);
  CHECK_THAT(streamed.body, Contains("\"error\"") && Contains("rate_limit_exceeded"));
  CHECK(f.server().store().waiting().waiting == 0);
}

TEST_CASE("a stream begins before it has memory, and continues once there is some") {
  FullServer f(std::chrono::minutes(10));
  grpc::ClientContext context;
  const auto reader = f.generation->Generate(&context, seeded_request(1));
  reader->WaitForInitialMetadata();
  CHECK(eventually([&] { return f.waits(); }));
  f.held = SessionLease();
  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) take_message(message, out);
  CHECK(reader->Finish().ok());
  CHECK(out.only().tokens.size() == kNewTokens);
}

TEST_CASE("a call that is cancelled, or past its deadline, leaves those that wait for memory") {
  FullServer f(std::chrono::minutes(10));
  {
    grpc::ClientContext context;
    const auto reader = f.generation->Generate(&context, seeded_request(1));
    REQUIRE(eventually([&] { return f.waits(); }));
    context.TryCancel();
    Generated out;
    v1::GenerateResponse message;
    while (reader->Read(&message)) take_message(message, out);
    for (const auto& [sample, tokens] : out.samples) CHECK(tokens.tokens.empty());
    CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
    CHECK(eventually([&] { return f.server().store().waiting().waiting == 0; }));
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  const auto reader = f.generation->Generate(&context, seeded_request(1));
  // The client's end of the call, or the server's, which says how many tokens there are.
  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) take_message(message, out);
  for (const auto& [sample, tokens] : out.samples) CHECK(tokens.tokens.empty());
  CHECK(reader->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(eventually([&] { return f.server().store().waiting().waiting == 0; }));
}

TEST_CASE("a server that stops ends the calls that wait for memory") {
  FullServer f(std::chrono::minutes(10));
  grpc::ClientContext context;
  const auto reader = f.generation->Generate(&context, seeded_request(1));
  REQUIRE(eventually([&] { return f.waits(); }));
  CHECK_FALSE(f.server().drain(milliseconds(50)));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  CHECK(reader->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace lintel::testing
