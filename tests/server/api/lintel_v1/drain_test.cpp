// SPDX-License-Identifier: Apache-2.0
// Health, reflection and the drain of a server.
#include <grpcpp/generic/generic_stub.h>

#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Health = grpc::health::v1::Health;
using HealthReply = grpc::health::v1::HealthCheckResponse;

const char* const kNames[] = {"",
                              "lintel.v1.GenerationService",
                              "lintel.v1.SessionService",
                              "lintel.v1.ModelService",
                              "lintel.v1.AdminService",
                              "inference.GRPCInferenceService"};

HealthReply::ServingStatus check(Health::Stub& health, const std::string& name) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(name);
  HealthReply reply;
  grpc::ClientContext context;
  const grpc::Status status = health.Check(&context, request, &reply);
  return status.ok() ? reply.status() : HealthReply::UNKNOWN;
}

TEST_CASE("health is known for the server and every service, and turns at the drain") {
  TestServer server({"tokens"});
  const auto health = Health::NewStub(server.channel());
  for (const char* name : kNames) CHECK(check(*health, name) == HealthReply::SERVING);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("nosuch");
  HealthReply reply;
  grpc::ClientContext context;
  CHECK(health->Check(&context, request, &reply).error_code() == grpc::StatusCode::NOT_FOUND);

  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthReply>>> watches;
  for (const char* name : kNames) {
    request.set_service(name);
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    watches.push_back(health->Watch(contexts.back().get(), request));
    REQUIRE(watches.back()->Read(&reply));
    CHECK(reply.status() == HealthReply::SERVING);
  }
  server.server().begin_drain();
  for (auto& watch : watches) {
    REQUIRE(watch->Read(&reply));
    CHECK(reply.status() == HealthReply::NOT_SERVING);
  }
  for (const char* name : kNames) CHECK(check(*health, name) == HealthReply::NOT_SERVING);
  for (auto& each : contexts) each->TryCancel();
}

TEST_CASE("an open Health.Watch receives NOT_SERVING when the server stops") {
  TestServer server({"tokens"});
  const auto health = Health::NewStub(server.channel());
  grpc::ClientContext context;
  const auto watch = health->Watch(&context, grpc::health::v1::HealthCheckRequest());
  HealthReply reply;
  REQUIRE(watch->Read(&reply));
  std::thread draining([&] { server.server().drain(std::chrono::seconds(5)); });
  REQUIRE(watch->Read(&reply));
  CHECK(reply.status() == HealthReply::NOT_SERVING);
  draining.join();
}

TEST_CASE("in a drain running streams end by themselves and new ones are refused") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  grpc::ClientContext context;
  const auto running = server.generation->Generate(&context, request_for("tokens", {1}, 10));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  server.server().begin_drain();

  const Generated refused = generate(server, request_for("tokens", {1}, 5));
  CHECK(refused.status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(detail_of<google::rpc::RetryInfo>(refused.status));
  v1::ScoreRequest scoring;
  scoring.add_sequences()->mutable_tokens()->add_ids(1);
  CHECK(score(server, scoring).status.error_code() == grpc::StatusCode::UNAVAILABLE);
  v1::CreateSessionRequest creating;
  v1::Session session;
  grpc::ClientContext second;
  CHECK(server.sessions->Create(&second, creating, &session).error_code() ==
        grpc::StatusCode::UNAVAILABLE);

  std::thread stepping([&] { run_until_idle(scheduler); });
  CHECK(server.server().drain(std::chrono::seconds(20)));
  stepping.join();
  Generated out;
  v1::GenerateResponse message;
  while (running->Read(&message)) take_message(message, out);
  CHECK(running->Finish().ok());
  CHECK(out.only().tokens.size() == 10);
}

TEST_CASE("a Score in progress ends by itself in a drain") {
  ServerOptions options = test_options();
  options.models.scheduling.max_batch_rows = 2;
  options.models.scheduling.prefill_rows_per_step = 2;
  TestServer server({"tokens"}, options);
  v1::ScoreRequest request;
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k < 50; ++k) {
      if (k == 0) request.add_sequences();
      request.mutable_sequences(i)->mutable_tokens()->add_ids(k);
    }
  }
  grpc::ClientContext context;
  const auto reader = server.generation->Score(&context, request);
  v1::ScoreResponse response;
  REQUIRE(reader->Read(&response));
  std::thread draining([&] { CHECK(server.server().drain(std::chrono::seconds(60))); });
  int count = 1;
  while (reader->Read(&response)) ++count;
  CHECK(reader->Finish().ok());
  CHECK(count == 200);
  draining.join();
}

TEST_CASE("past the drain timeout a stream ends with its final frame and UNAVAILABLE") {
  TestServer server({"tokens"});
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request_for("tokens", {1}, 1'000'000));
  Generated out;
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  take_message(message, out);
  bool all_ended = true;
  std::thread draining([&] { all_ended = server.server().drain(std::chrono::milliseconds(50)); });
  while (reader->Read(&message)) {
    take_message(message, out);
    out.messages.clear();
  }
  const grpc::Status status = reader->Finish();
  draining.join();
  CHECK_FALSE(all_ended);
  CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(detail_of<google::rpc::RetryInfo>(status));
  CHECK(out.only().finishes == 1);
  CHECK(out.only().finish.reason() == v1::FINISH_REASON_CANCELLED);
}

// One question to the reflection service, whose messages Debian ships no header for: `request` is a
// serialised ServerReflectionRequest.
std::string ask_reflection(TestServer& server, const std::string& request) {
  grpc::GenericStub stub(server.channel());
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  REQUIRE(wait());
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  REQUIRE(wait());
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  REQUIRE(wait());
  std::vector<grpc::Slice> slices;
  REQUIRE(reply.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& piece : slices) bytes.append(piece.begin(), piece.end());
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  return bytes;
}

TEST_CASE("reflection lists every service and knows the health protocol") {
  TestServer server({"tokens"});
  const std::string services = ask_reflection(server, "\x3a\x01*");  // list_services: "*"
  for (const char* name : {"lintel.v1.GenerationService", "lintel.v1.SessionService",
                           "lintel.v1.ModelService", "grpc.health.v1.Health"}) {
    CHECK(services.find(name) != std::string::npos);
  }
  // file_containing_symbol
  const std::string file = ask_reflection(server, "\x22\x15grpc.health.v1.Health");
  CHECK(file.find("HealthCheckRequest") != std::string::npos);
}

}  // namespace
}  // namespace lintel::testing
