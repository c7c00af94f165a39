// SPDX-License-Identifier: Apache-2.0
// What one identity may use: streams, tokens a second, sessions, memory.
#include <chrono>
#include <future>

#include "tests/server/support/calls_as.h"
#include "tests/server/support/service_fixture.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

void check_quota(const grpc::Status& status, const std::string& identity) {
  CHECK(status.error_code() == Code::RESOURCE_EXHAUSTED);
  const auto failure = detail_of<google::rpc::QuotaFailure>(status);
  REQUIRE(failure);
  REQUIRE(failure->violations_size() == 1);
  CHECK(failure->violations(0).subject() == "identity:" + identity);
  const auto retry = detail_of<google::rpc::RetryInfo>(status);
  REQUIRE(retry);
  CHECK(retry->retry_delay().seconds() + retry->retry_delay().nanos() > 0);
}

}  // namespace

TEST_CASE("a limit on an identity's streams does not affect other identities", "[threat-53]") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.models.scheduling.workers = 0;
  options.identity.max_streams = 2;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  const auto request = request_for("tokens", {1}, 5);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> streams;
  const auto open = [&](const char* who) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    set_token(*contexts.back(), who);
    streams.push_back(server.generation->Generate(contexts.back().get(), request));
    return eventually([&] { return scheduler.stats().queued == streams.size(); });
  };
  REQUIRE(open("alice"));
  REQUIRE(open("alice"));
  check_quota(generate_as(server, "alice", request), "alice");
  check_quota(score_as(server, "alice"), "alice");
  REQUIRE(open("bob"));
  run_until_idle(scheduler);
  for (auto& stream : streams) {
    v1::GenerateResponse message;
    while (stream->Read(&message)) {
    }
    CHECK(stream->Finish().ok());
  }
  // A client that has a stream's status has its place again; refused calls kept none.
  streams.clear();
  REQUIRE(open("alice"));
  run_until_idle(scheduler);
  v1::GenerateResponse message;
  while (streams[0]->Read(&message)) {
  }
  CHECK(streams[0]->Finish().ok());
}

TEST_CASE("once its burst is used up, the calls of an identity run at its tokens per second",
          "[threat-53]") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.identity.tokens_per_second = 10;
  options.identity.token_burst = 100;
  options.models.scheduling.workers = 0;
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  Scheduler& scheduler = server.scheduler("tokens");
  // The time of a call, but for the model's own.
  const auto time_of = [&](const std::function<grpc::Status()>& call) {
    auto status = std::async(std::launch::async, call);
    const auto over = [&] {
      return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    std::chrono::milliseconds passed{0};
    CHECK(eventually([&] {
      while (scheduler.run_one_step()) {
      }
      if (over()) return true;
      if (scheduler.stats().running == 0) return false;
      clock.advance(std::chrono::milliseconds(100));
      passed += std::chrono::milliseconds(100);
      return false;
    }));
    CHECK(status.get().ok());
    return passed;
  };
  const auto generate = [&](const std::string& who, unsigned max_new_tokens) {
    return time_of([&, who, max_new_tokens] {
      return generate_as(server, who, request_for("tokens", {1}, max_new_tokens));
    });
  };
  CHECK(generate("alice", 59) == std::chrono::milliseconds(0));  // 1 + 59 of 100
  const auto second = generate("alice", 59);                     // 20 more than there are
  CHECK(second >= std::chrono::milliseconds(1800));
  CHECK(second <= std::chrono::milliseconds(2200));
  CHECK(generate("bob", 59) == std::chrono::milliseconds(0));
  // Scoring is paid for too.
  const auto scored = time_of([&] { return score_as(server, "alice"); });
  CHECK(scored <= std::chrono::milliseconds(600));
  // A stop token ends the first call after one token or so: it pays for no more.
  clock.advance(std::chrono::seconds(100));
  v1::GenerateRequest stops = request_for("tokens", {1}, 99);
  for (int token = 0; token < 50; ++token) stops.mutable_stop()->add_token_ids(token);
  CHECK(time_of([&] { return generate_as(server, "alice", stops); }) ==
        std::chrono::milliseconds(0));
  CHECK(generate("alice", 90) == std::chrono::milliseconds(0));
}

TEST_CASE("a call that would wait long before it begins is refused with the time to retry") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.identity.tokens_per_second = 1;
  options.identity.token_burst = 1;
  options.models.scheduling.workers = 0;
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  Scheduler& scheduler = server.scheduler("tokens");
  // A step reads more of a prompt than is saved up.
  grpc::ClientContext context;
  set_token(context, "alice");
  const auto reader =
      server.generation->Generate(&context, request_for("tokens", std::vector<int>(200, 1), 1));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  while (scheduler.run_one_step()) {
  }
  const auto debt = static_cast<std::int64_t>(scheduler.stats().prompt_tokens) - 1;
  REQUIRE(debt > 20);
  REQUIRE(debt < 200);
  const grpc::Status refused = generate_as(server, "alice", request_for("tokens", {1}, 1));
  check_quota(refused, "alice");
  const auto retry = detail_of<google::rpc::RetryInfo>(refused)->retry_delay().seconds();
  CHECK(retry >= debt - 11);
  CHECK(retry <= debt - 9);
  check_quota(score_as(server, "alice"), "alice");
  context.TryCancel();
}

TEST_CASE("sessions and memory of one identity are bounded", "[threat-53]") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.sessions.max_sessions_per_owner = 2;
  TestServer server({"tokens"}, options);
  v1::Session session;
  CHECK(create_as(server, "alice", &session).ok());
  CHECK(create_as(server, "alice", &session).ok());
  check_quota(create_as(server, "alice", &session), "alice");
  CHECK(create_as(server, "bob", &session).ok());

  options.sessions.max_sessions_per_owner = 0;
  options.sessions.max_queue_wait = std::chrono::milliseconds(0);
  options.sessions.bytes_per_owner = 128 << 10;  // a call needs some 40 KB in addition to its state
  TestServer small({"tokens"}, options);
  std::int64_t taken = 0;
  grpc::Status refused;
  while ((refused = create_as(small, "alice", &session)).ok()) taken += session.state_bytes();
  check_quota(refused, "alice");
  CHECK(taken <= 128 << 10);
  CHECK(taken + session.state_bytes() > 128 << 10);
  check_quota(generate_as(small, "alice", request_for("tokens", {1}, 3)), "alice");
  CHECK(generate_as(small, "bob", request_for("tokens", {1}, 3)).ok());
}

}  // namespace lintel::testing
