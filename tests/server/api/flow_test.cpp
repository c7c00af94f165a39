// SPDX-License-Identifier: Apache-2.0
// Cancellation, deadlines, slow readers and full queues.
#include <thread>

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr unsigned kForever = 1'000'000;

TEST_CASE("a cancelled call frees its row and its memory") {
  TestServer server({"tokens"});
  Scheduler& scheduler = server.scheduler("tokens");
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request_for("tokens", {1}, kForever));
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  CHECK(scheduler.stats().running == 1);
  context.TryCancel();
  CHECK(eventually([&] { return scheduler.idle(); }));
  while (reader->Read(&message)) {
  }
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(eventually([&] { return server.server().store().bytes_in_use() == 0; }));
}

TEST_CASE("a call cancelled while it waits in the queue is answered and gone") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 1;
  options.models.scheduling.max_batch_rows = 1;
  options.models.scheduling.prefill_rows_per_step = 1;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  // The one row is taken for as long as the test likes.
  grpc::ClientContext first_context;
  const auto first =
      server.generation->Generate(&first_context, request_for("tokens", {1}, kForever));
  REQUIRE(eventually([&] { return scheduler.stats().running == 1; }));
  grpc::ClientContext context;
  const auto waiting = server.generation->Generate(&context, request_for("tokens", {1}, 5));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  context.TryCancel();
  CHECK(waiting->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(eventually([&] { return scheduler.stats().queued == 0; }));
  CHECK(eventually([&] { return scheduler.stats().running == 1; }));
  first_context.TryCancel();
  CHECK(eventually([&] { return scheduler.idle(); }));
}

TEST_CASE("the call's own deadline ends it with DEADLINE_EXCEEDED") {
  TestServer server({"tokens"});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const auto reader = server.generation->Generate(&context, request_for("tokens", {1}, kForever));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  CHECK(reader->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(eventually([&] { return server.scheduler("tokens").idle(); }));
}

// gRPC's own conversion to a time point overflows beyond the year 2262.
TEST_CASE("a deadline in ten thousand years is far away, not passed") {
  TestServer server({"tokens"});
  grpc::ClientContext context;
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_hours(99'999'999, GPR_TIMESPAN)));
  const auto reader = server.generation->Generate(&context, request_for("tokens", {1}, 3));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  CHECK(reader->Finish().ok());
}

TEST_CASE("a time limit ends the stream with its tokens so far and a final frame") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  Scheduler& scheduler = server.scheduler("tokens");
  v1::GenerateRequest request = request_for("tokens", {1}, kForever);
  request.mutable_time_limit()->set_seconds(2);
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request);
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  for (int i = 0; i < 5; ++i) scheduler.run_one_step();
  clock.advance(std::chrono::seconds(3));
  run_until_idle(scheduler);
  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) take_message(message, out);
  CHECK(reader->Finish().ok());
  CHECK(out.only().tokens.size() == 5);
  CHECK(out.only().finish.reason() == v1::FINISH_REASON_DEADLINE);
  CHECK(out.only().finish.generated_tokens() == 5);
}

// A hundred streams of one client that reads nothing come to more than a hundred outboxes.
constexpr std::uint64_t kOutboxTokens = 4096;
constexpr std::uint64_t kUnread = 100;

TEST_CASE("a hundred unread streams of one client do not keep another's request waiting",
          "[threat-55]") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 1;
  options.models.scheduling.max_batch_rows = 4;
  options.streaming.outbox_tokens = kOutboxTokens;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  const auto expected = generate(server, request_for("tokens", {2}, 20)).only().tokens;

  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  const auto stub = v1::GenerationService::NewStub(grpc::CreateCustomChannel(
      server.server().address(), grpc::InsecureChannelCredentials(), arguments));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (std::uint64_t i = 0; i < kUnread; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Generate(contexts.back().get(), request_for("tokens", {1}, kForever)));
  }
  REQUIRE(eventually([&] {
    const Scheduler::Stats stats = scheduler.stats();
    return stats.running + stats.queued == kUnread;
  }));
  const std::uint64_t before = scheduler.stats().generated_tokens;
  const Generated other = generate(server, request_for("tokens", {2}, 20));
  const std::uint64_t meanwhile = scheduler.stats().generated_tokens - before;
  REQUIRE(other.status.ok());
  CHECK(other.only().tokens == expected);
  INFO(before << " tokens before, " << meanwhile << " meanwhile");
  // After the backlog it would have come when all but four of them were full.
  CHECK(before + meanwhile < kUnread * kOutboxTokens / 2);
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& reader : readers) {
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    reader->Finish();
  }
}

TEST_CASE("a slow reader is paused, loses nothing and does not slow other streams", "[threat-54]") {
  ServerOptions options = test_options();
  options.streaming.outbox_tokens = 64;
  options.models.scheduling.workers = 1;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  constexpr unsigned kMany = 20'000;

  // A connection of its own, whose window does not grow while it is not read.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
  const auto slow_client = v1::GenerationService::NewStub(grpc::CreateCustomChannel(
      server.server().address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::GenerateRequest slow = request_for("tokens", {1}, kMany);
  slow.set_max_tokens_per_message(1);
  const auto reader = slow_client->Generate(&context, slow);
  REQUIRE(eventually([&] { return scheduler.stats().generated_tokens > 64; }));

  // Others run to their end while the first is not read; sooner or later its row stands still.
  std::uint64_t others = 0;
  const bool paused = eventually([&] {
    const std::uint64_t before = scheduler.stats().generated_tokens;
    const Generated other = generate(server, request_for("tokens", {2}, 200));
    REQUIRE(other.status.ok());
    REQUIRE(other.only().tokens.size() == 200);
    others += 200;
    return scheduler.stats().generated_tokens == before + 200;
  });
  CHECK(paused);
  CHECK(eventually([&] { return scheduler.stats().running == 1; }));
  CHECK(scheduler.stats().generated_tokens - others < kMany);

  Generated out;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    take_message(message, out);
    out.messages.clear();
  }
  CHECK(reader->Finish().ok());
  CHECK(out.only().tokens.size() == kMany);
  CHECK(out.only().contiguous);
  CHECK(out.only().finishes == 1);
}

TEST_CASE("a paused call can be cancelled") {
  ServerOptions options = test_options();
  options.streaming.outbox_tokens = 2;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request_for("tokens", {1}, kForever));
  REQUIRE(eventually([&] { return scheduler.stats().generated_tokens > 100; }));
  context.TryCancel();
  CHECK(eventually([&] { return scheduler.idle(); }));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("a full queue refuses at once, with a time to retry", "[threat-56]") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 2;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  grpc::ClientContext contexts[2];
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> readers[2];
  for (int i = 0; i < 2; ++i) {
    readers[i] = server.generation->Generate(&contexts[i], request_for("tokens", {1}, 5));
  }
  REQUIRE(eventually([&] { return scheduler.stats().queued == 2; }));
  const Generated refused = generate(server, request_for("tokens", {1}, 5));
  CHECK(refused.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto retry = detail_of<google::rpc::RetryInfo>(refused.status);
  REQUIRE(retry);
  CHECK(retry->retry_delay().nanos() > 0);
  run_until_idle(scheduler);
  for (auto& reader : readers) {
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    CHECK(reader->Finish().ok());
  }
}

// Admitted bytes of a sample of the model "tokens" with so many tokens, without speculation: its
// sequence, and its tokens while they wait for the client.
std::size_t sample_bytes(std::size_t num_tokens) {
  return SessionManager::admitted_bytes(*tiny_models({"tokens"}).at("tokens"), 0) + num_tokens * 64;
}

TEST_CASE("a call is refused at once where its state does not fit now, with max-queue-wait 0") {
  ServerOptions options = test_options();
  options.models.scheduling.speculation = Speculation::kOff;
  const std::size_t session_bytes = SessionManager::session_bytes(
      *tiny_models({"tokens"}).at("tokens"), {}, options.sessions.history_tokens);
  options.sessions.session_memory_bytes = session_bytes + 3 * sample_bytes(5) - 1;
  options.sessions.max_queue_wait = std::chrono::milliseconds(0);
  TestServer server({"tokens"}, options);
  v1::GenerateRequest request = request_for("tokens", {1}, 5);
  const v1::Session session = create_session(server, "tokens");
  request.set_num_samples(3);
  const Generated refused = generate(server, request);
  CHECK(refused.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(refused.status));
  request.set_num_samples(2);
  CHECK(generate(server, request).status.ok());
}

TEST_CASE("a call whose state would never fit is refused with both figures and no time to retry") {
  const std::size_t bytes = sample_bytes(5);
  ServerOptions options = test_options();
  options.models.scheduling.speculation = Speculation::kOff;
  options.sessions.session_memory_bytes = 3 * bytes + 1;
  TestServer server({"tokens"}, options);
  v1::GenerateRequest request = request_for("tokens", {1}, 5);
  request.set_num_samples(4);
  const grpc::Status refused = generate(server, request).status;
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK_FALSE(detail_of<google::rpc::RetryInfo>(refused));
  CHECK_THAT(refused.error_message(), Catch::Contains(std::to_string(4 * bytes)) &&
                                          Catch::Contains(std::to_string(3 * bytes + 1)) &&
                                          Catch::Contains("for 6 tokens") &&
                                          Catch::Contains("ask for fewer samples") &&
                                          Catch::Contains("--session-memory"));
  const auto details = detail_of<google::rpc::PreconditionFailure>(refused);
  REQUIRE(details);
  CHECK(details->violations(0).type() == "SESSION_MEMORY");
}

TEST_CASE("batch invariance: concurrent callers get the tokens they get alone", "[threat-8]") {
  TestServer server({"tokens"});
  constexpr int kCallers = 24;
  std::vector<std::vector<std::int32_t>> alone(kCallers), together(kCallers);
  const auto request_of = [](int i) {
    v1::GenerateRequest request = request_for("tokens", std::vector<int>(1 + i, i), 40 + i);
    request.mutable_sampling()->set_seed(static_cast<std::uint64_t>(i));
    return request;
  };
  for (int i = 0; i < kCallers; ++i) alone[i] = generate(server, request_of(i)).only().tokens;
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] { together[i] = generate(server, request_of(i)).only().tokens; });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(together == alone);
}

}  // namespace
}  // namespace lintel::testing
