// SPDX-License-Identifier: Apache-2.0
// Sequences of the Open Inference Protocol that start, end and are evicted at the same time.
#include <atomic>
#include <barrier>
#include <thread>

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/kserve/sequences.h"
#include "tests/server/support/service_parts.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Lets the first session be made only when another is being made, too: each asks for the time first
// when it is made, before it is anywhere.
class MeetingClock final : public ManualClock {
 public:
  std::chrono::system_clock::time_point wall_time() const override {
    if (asked_.fetch_add(1) < 2) meeting_.arrive_and_wait();
    return ManualClock::wall_time();
  }

 private:
  mutable std::atomic<int> asked_{0};
  mutable std::barrier<> meeting_{2};
};

struct Sequences {
  Sequences(const SessionManager::Options& store_options, const Clock& clock)
      : parts(clock, store_options) {}

  // A call that names the sequence "s", and is over.
  grpc::Status find(bool start, ClientSequence& sequence, const Owner& owner = "") {
    TensorRequest request;
    request.sequence_id = "s";
    request.sequence_start = start;
    GenerationTarget target{parts.model(), {}};
    return sequences.find(owner, request, target, sequence);
  }

  ServiceParts parts;
  SessionManager& store = parts.store;
  ClientSequences sequences{parts.context()};
};

TEST_CASE("two concurrent starts of one sequence leave one session, that of the name") {
  MeetingClock clock;
  Sequences f({.session_memory_bytes = 1u << 26}, clock);
  ClientSequence started[2];
  grpc::Status statuses[2];
  {
    std::thread other([&] { statuses[1] = f.find(/*start=*/true, started[1]); });
    statuses[0] = f.find(true, started[0]);
    other.join();
  }
  CHECK(statuses[0].ok());
  CHECK(statuses[1].ok());
  CHECK(f.store.stats().created == 2);
  CHECK(f.store.num_sessions() == 1);
  ClientSequence found;
  REQUIRE(f.find(/*start=*/false, found).ok());
  CHECK(f.store.get(found.session_id));
}

TEST_CASE("a start that finds no memory leaves neither session nor name") {
  const auto bytes = SessionManager::session_bytes(*tiny_models({"tokens"}).at("tokens"), {});
  const ManualClock clock;
  Sequences f({.session_memory_bytes = bytes}, clock);
  ClientSequence first;
  REQUIRE(f.find(true, first, "alice").ok());
  ClientSequence second;
  CHECK(f.find(true, second, "bob").error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(f.store.num_sessions() == 1);
  CHECK(f.find(false, second, "bob").error_code() == grpc::StatusCode::NOT_FOUND);
  f.sequences.end(first);
  CHECK(f.store.num_sessions() == 0);
  CHECK(f.find(true, second, "bob").ok());
}

TEST_CASE("a failed start leaves no sequence, and one that has read a token stays") {
  const ManualClock clock;
  Sequences f({.session_memory_bytes = 1u << 26}, clock);
  ClientSequence started;
  REQUIRE(f.find(true, started).ok());
  f.sequences.end_if_last(started);
  CHECK(f.store.num_sessions() == 0);
  ClientSequence found;
  CHECK(f.find(false, found).error_code() == grpc::StatusCode::NOT_FOUND);
  REQUIRE(f.find(true, started).ok());
  f.store.lease(started.session_id).lease.sequence().pending = 3;
  f.sequences.end_if_last(started);
  CHECK(f.find(false, found).ok());
}

TEST_CASE("a start that finds the queue full leaves no session") {
  const bool streams = GENERATE(false, true);
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.models.scheduling.max_queued_requests = 1;
  TestServer server({"tokens"}, options);
  const auto stub = inference::GRPCInferenceService::NewStub(server.channel());
  grpc::ClientContext first_context;
  const auto first = server.generation->Generate(&first_context, request_for("tokens", {1}, 5));
  Scheduler& scheduler = server.scheduler("tokens");
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  inference::ModelInferRequest request;
  request.set_model_name("tokens");
  auto& input = *request.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.add_shape(1);
  input.mutable_contents()->add_int_contents(1);
  auto& parameters = *request.mutable_parameters();
  parameters["sequence_id"].set_int64_param(1);
  parameters["sequence_start"].set_bool_param(true);
  if (streams) parameters["stream"].set_bool_param(true);
  grpc::ClientContext context;
  const auto stream = stub->ModelStreamInfer(&context);
  REQUIRE(stream->Write(request));
  inference::ModelStreamInferResponse response;
  REQUIRE(stream->Read(&response));
  CHECK_THAT(response.error_message(), Catch::Contains("queue is full"));
  CHECK(server.server().store().num_sessions() == 0);
  CHECK(stream->WritesDone());
  CHECK(stream->Finish().ok());
  first_context.TryCancel();
  REQUIRE(eventually([&] {
    scheduler.run_one_step();
    return scheduler.idle();
  }));
}

TEST_CASE("the end of a sequence does not remove a later one of the same name") {
  const ManualClock clock;
  Sequences f({.session_memory_bytes = 1u << 26}, clock);
  ClientSequence first;
  REQUIRE(f.find(true, first).ok());
  ClientSequence second;
  REQUIRE(f.find(true, second).ok());
  f.sequences.end(first);
  ClientSequence found;
  REQUIRE(f.find(false, found).ok());
  CHECK(found.session_id == second.session_id);
}

TEST_CASE("names of sequences that were evicted are forgotten, and others are not") {
  ManualClock clock;
  Sequences f({.session_memory_bytes = 1u << 26, .idle_timeout = std::chrono::seconds(10)}, clock);
  SequenceNames names(f.store);
  const auto start = [&](int name) {
    const auto created = f.store.create("tokens", f.parts.model()->transformer, 0);
    REQUIRE(created.refusal.error == SessionError::kNone);
    names.put({"", "tokens", std::to_string(name)}, created.info.id);
  };
  for (int i = 0; i < 1000; ++i) {
    start(i);
    clock.advance(std::chrono::seconds(1));
    f.store.evict_idle();
  }
  REQUIRE(f.store.num_sessions() <= 10);
  CHECK(names.size() <= 64 + 10);
  CHECK(names.find({"", "tokens", "999"}));
  CHECK(!names.find({"", "tokens", "0"}));
}

}  // namespace
}  // namespace lintel::testing
