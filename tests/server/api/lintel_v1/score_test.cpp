// SPDX-License-Identifier: Apache-2.0
// Score: log-probabilities of given sequences, in the order of the request.
#include <atomic>
#include <new>
#include <thread>
#include <utility>

#include "server/api/request_checks.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

v1::ScoreRequest many_sequences(int count) {
  v1::ScoreRequest request;
  request.set_model("tokens");
  for (int i = 0; i < count; ++i) {
    auto& ids = *request.add_sequences()->mutable_tokens();
    for (int k = 0; k < 2 + (i * 7) % 40; ++k) ids.add_ids((i + k * k) % 50);
  }
  return request;
}

TEST_CASE("sequences come back in order, one probability fewer than tokens") {
  TestServer server({"tokens"});
  const v1::ScoreRequest request = many_sequences(300);
  const Scored out = score(server, request);
  REQUIRE(out.status.ok());
  REQUIRE(out.responses.size() == 300);
  for (int i = 0; i < 300; ++i) {
    const v1::ScoreResponse& response = out.responses[static_cast<std::size_t>(i)];
    CHECK(response.index() == static_cast<unsigned>(i));
    REQUIRE(response.log2_probs_size() == request.sequences(i).tokens().ids_size() - 1);
    double sum = 0;
    for (const float log2_prob : response.log2_probs()) {
      CHECK(log2_prob < 0);
      sum += log2_prob;
    }
    CHECK(response.bits_per_dim() == Approx(-sum / response.log2_probs_size()).epsilon(1e-12));
  }
}

TEST_CASE("a sequence scores the same alone and among others") {
  TestServer server({"tokens"});
  const v1::ScoreRequest all = many_sequences(20);
  const Scored together = score(server, all);
  REQUIRE(together.status.ok());
  for (int i = 0; i < 20; ++i) {
    v1::ScoreRequest one;
    one.set_model("tokens");
    *one.add_sequences() = all.sequences(i);
    const Scored alone = score(server, one);
    REQUIRE(alone.status.ok());
    const auto& a = alone.responses.at(0).log2_probs();
    const auto& b = together.responses[static_cast<std::size_t>(i)].log2_probs();
    CHECK(std::vector<float>(a.begin(), a.end()) == std::vector<float>(b.begin(), b.end()));
  }
}

TEST_CASE("a whole image can be scored, one token more cannot") {
  TestServer server({"image"});
  v1::ScoreRequest request;
  request.add_sequences()->set_pixels(std::string(30, '\x20'));
  const Scored whole = score(server, request);
  REQUIRE(whole.status.ok());
  CHECK(whole.responses.at(0).log2_probs_size() == 29);
  request.mutable_sequences(0)->set_pixels(std::string(31, '\x20'));
  CHECK(violated_fields(score(server, request).status) == std::vector<std::string>{"sequences[0]"});
}

TEST_CASE("a Score of more sequences than are served is refused, however short they are") {
  ServerOptions options = test_options();
  options.connections.max_message_bytes = 16 << 20;  // so many are too much for the default
  TestServer server({"tokens"}, options);
  v1::ScoreRequest request;
  for (int i = 0; i <= kMaxScoreSequences; ++i) {
    request.add_sequences()->mutable_tokens()->mutable_ids()->Resize(2, 1);
  }
  const Scored refused = score(server, request);
  CHECK(violated_fields(refused.status) == std::vector<std::string>{"sequences"});
  CHECK_THAT(refused.status.error_message(),
             Catch::Contains("65537 sequences") && Catch::Contains("more than 65536"));
  CHECK(server.scheduler("tokens").stats().steps == 0);

  request.mutable_sequences()->RemoveLast();
  Violations violations;
  const ScoreSequences most =
      check_score(request, tiny_config(TinyModel::kTokens), nullptr, RequestLimits(), violations);
  CHECK(violations.empty());
  REQUIRE(most.size() == kMaxScoreSequences);
  CHECK(most[0].size() == 2);
  CHECK(most[most.size() - 1].size() == 2);
  // All that a sequence takes while it waits to be submitted.
  const std::size_t bytes =
      most.tokens.capacity() * sizeof(most.tokens[0]) + most.ends.capacity() * sizeof(most.ends[0]);
  CHECK(bytes <= 32 * most.size());
}

TEST_CASE("a queue of one place serves a long Score all the same") {
  ServerOptions options = test_options();
  options.models.scheduling.max_queued_requests = 1;
  options.models.scheduling.max_batch_rows = 2;
  options.models.scheduling.prefill_rows_per_step = 2;
  TestServer server({"tokens"}, options);
  const Scored out = score(server, many_sequences(100));
  REQUIRE(out.status.ok());
  CHECK(out.responses.size() == 100);
}

TEST_CASE("a Score in progress waits for a queue others keep full") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 1;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");

  grpc::ClientContext score_context;
  const auto reader = server.generation->Score(&score_context, many_sequences(3));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  scheduler
      .run_one_step();  // the first of the three has two tokens: it is done and the next queued
  grpc::ClientContext other_context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> other;
  // Another request may take a free place first: keep stepping until all have ended.
  other = server.generation->Generate(&other_context, request_for("tokens", {1}, 3));
  std::vector<v1::ScoreResponse> responses;
  std::atomic<bool> ended{false};
  std::thread stepping([&] {
    while (!ended) scheduler.run_one_step();
  });
  v1::ScoreResponse response;
  while (reader->Read(&response)) responses.push_back(response);
  CHECK(reader->Finish().ok());
  CHECK(responses.size() == 3);
  v1::GenerateResponse message;
  while (other->Read(&message)) {
  }
  const grpc::Status status = other->Finish();
  CHECK((status.ok() || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED));
  ended = true;
  stepping.join();
}

TEST_CASE("Scores of one short sequence are counted, however soon they are done") {
  TestServer server({"tokens"});
  v1::ScoreRequest request;
  request.set_model("tokens");
  for (const int id : {1, 2}) request.add_sequences()->mutable_tokens()->add_ids(id);
  request.mutable_sequences(0)->mutable_tokens()->add_ids(3);
  request.mutable_sequences()->RemoveLast();
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < 100; ++k) wrong += score(server, request).status.ok() ? 0 : 1;
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(wrong == 0);
}

TEST_CASE("a Score that arrives at a full queue is refused at once") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 1;
  TestServer server({"tokens"}, options);
  grpc::ClientContext context;
  const auto waiting = server.generation->Generate(&context, request_for("tokens", {1}, 3));
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().queued == 1; }));
  const Scored refused = score(server, many_sequences(3));
  CHECK(refused.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(detail_of<google::rpc::RetryInfo>(refused.status));
  run_until_idle(server.scheduler("tokens"));
}

// A clock that, when armed, throws where the next submitted request gets its time: after the store
// has noted the date of its lease.
class ClockWithoutMemory final : public ManualClock {
 public:
  TimePoint now() const override {
    if (std::exchange(failing_, false)) throw std::bad_alloc();
    return ManualClock::now();
  }
  std::chrono::system_clock::time_point wall_time() const override {
    if (armed_.exchange(false)) failing_ = true;
    return ManualClock::wall_time();
  }
  void fail_next_submission() { armed_ = true; }

 private:
  mutable std::atomic<bool> armed_{false};
  static inline thread_local bool failing_ = false;
};

TEST_CASE("a Score that runs out of the machine's memory ends, and the server after it") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 4;  // a window of two
  ClockWithoutMemory clock;
  TestServer server({"tokens"}, options, clock);
  Scheduler& scheduler = server.scheduler("tokens");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto reader = server.generation->Score(&context, many_sequences(10));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 2; }));
  clock.fail_next_submission();
  v1::ScoreResponse response;
  std::atomic<bool> ended{false};
  std::thread stepping([&] {
    while (!ended) scheduler.run_one_step();
  });
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  ended = true;
  stepping.join();
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(status.error_message(), Catch::Contains("out of memory"));
  run_until_idle(scheduler);
  CHECK(server.server().store().bytes_in_use() == 0);
  CHECK(server.server().drain(std::chrono::seconds(20)));
}

TEST_CASE("a Score that waits for memory ends when the server stops") {
  // The state of a sequence grows with its length, and there is memory for one of 1000 tokens.
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 5);
  const std::shared_ptr<const Transformer> model =
      Transformer::load(directory.path(), {.attention = parse_attention_spec("softmax")});
  ServerOptions options = test_options();
  options.sessions.session_memory_bytes = SessionManager::admitted_bytes(*model, 999);
  const SteadyClock clock;
  TestServer server(options, clock, {{"tokens", model}});
  const auto in_the_way = server.server().store().lease_one_shot("tokens", model, 2, 1).lease;
  REQUIRE(in_the_way);
  v1::ScoreRequest request;
  for (const int length : {2, 1000}) {
    request.add_sequences()->mutable_tokens()->mutable_ids()->Resize(length, 1);
  }
  grpc::ClientContext context;
  const auto reader = server.generation->Score(&context, request);
  v1::ScoreResponse response;
  REQUIRE(reader->Read(&response));
  CHECK_FALSE(server.server().drain(std::chrono::milliseconds(50)));
  CHECK_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(detail_of<google::rpc::RetryInfo>(status));
}

TEST_CASE("a cancelled Score frees everything it held") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  grpc::ClientContext context;
  const auto reader = server.generation->Score(&context, many_sequences(500));
  REQUIRE(eventually([&] { return scheduler.stats().queued > 100; }));
  scheduler.run_one_step();
  context.TryCancel();
  v1::ScoreResponse response;
  while (reader->Read(&response)) {
  }
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(eventually([&] {
    scheduler.run_one_step();
    return scheduler.idle();
  }));
  CHECK(server.server().store().bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
