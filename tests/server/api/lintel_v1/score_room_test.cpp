// SPDX-License-Identifier: Apache-2.0
// Scores that wait for room resume when there is some. No threads: the test runs every step.
#include "model/config/attention_spec.h"
#include "server/api/lintel_v1/generation_service.h"
#include "tests/server/support/call_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// A sequence of two tokens and one of a thousand, of a model whose state grows with its sequence.
struct WaitingScore : CallFixture {
  explicit WaitingScore(int max_queued_requests) : CallFixture("tokens") {
    const TemporaryDirectory directory;
    write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 5);
    served->transformer =
        Transformer::load(directory.path(), {.attention = parse_attention_spec("softmax")});
    served->scheduler = std::make_unique<Scheduler>(
        model->transformer,
        Scheduler::Options{
            .workers = 0, .max_batch_rows = 1, .max_queued_requests = max_queued_requests},
        clock);
    memory.emplace(SessionManager::Options{.session_memory_bytes = bytes(1000)}, clock);
    reactor = entered<ScoreStream::Reactor>(Method::kScore);
    writer.emplace(reactor);
    ScoreSequences sequences;
    sequences.tokens.assign(1002, 1);
    sequences.ends = {2, 1002};
    stream =
        std::make_shared<ScoreStream>(model, *memory, sequences, ScoreStream::Options{.window = 2});
    reactor->run(stream);
  }
  ~WaitingScore() {
    served->scheduler->stop();
    write();
    CHECK(writer->finishes == 1);
    stream.reset();
    reactor->OnDone();
  }

  // Bytes of the state of a sequence of so many tokens, the last of which is never fed.
  std::size_t bytes(std::int64_t tokens) const {
    return SessionManager::admitted_bytes(*model->transformer, tokens - 1);
  }
  SessionLease lease(std::int64_t tokens) {
    SessionLease held = memory->lease_one_shot("m", model->transformer, tokens, 1).lease;
    REQUIRE(held);
    return held;
  }
  std::uint64_t queued() const { return served->scheduler->stats().queued; }
  void write() {
    while (writer->in_flight > 0) {
      --writer->in_flight;
      reactor->OnWriteDone(true);
    }
  }
  // Until there is nothing to do.
  void step() {
    while (served->scheduler->run_one_step()) {
    }
    write();
  }

  std::optional<SessionManager> memory;
  ScoreStream::Reactor* reactor = nullptr;
  std::optional<CountingWriter> writer;
  std::shared_ptr<ScoreStream> stream;
};

TEST_CASE("a sequence that found the queue full joins it when a place is free") {
  WaitingScore w(/*max_queued_requests=*/1);
  w.memory.emplace(SessionManager::Options{.session_memory_bytes = 2 * w.bytes(1000)}, w.clock);
  REQUIRE(w.stream->begin().ok());
  CHECK(w.queued() == 1);
  w.served->scheduler->run_one_step();  // takes the first out of the queue
  CHECK(w.queued() == 1);
  w.step();
  CHECK(w.writer->finishes == 1);
  CHECK(w.writer->code == grpc::StatusCode::OK);
}

TEST_CASE("a sequence that found no memory is submitted when others release theirs") {
  WaitingScore w(/*max_queued_requests=*/10);
  SessionLease others = w.lease(2);
  REQUIRE(w.stream->begin().ok());
  w.step();  // the first is done, and its memory alone does not do
  CHECK(w.writer->finishes == 0);
  CHECK(w.queued() == 0);
  others = SessionLease();
  CHECK(w.queued() == 1);
  w.step();
  CHECK(w.writer->finishes == 1);
  CHECK(w.writer->code == grpc::StatusCode::OK);
}

TEST_CASE("a Score that waits for memory ends when its model is drained or unloaded") {
  const bool drains = GENERATE(true, false);
  WaitingScore w(/*max_queued_requests=*/10);
  const SessionLease others = w.lease(2);
  REQUIRE(w.stream->begin().ok());
  w.step();
  REQUIRE(w.writer->finishes == 0);
  if (drains) {
    w.served->scheduler->begin_drain();
  } else {
    w.served->retired = true;
    w.served->scheduler->waiting_room().tell();
  }
  CHECK(w.writer->finishes == 1);
  CHECK(w.writer->code == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("the sequences of a Score whose client disconnects end in the next step") {
  WaitingScore w(/*max_queued_requests=*/10);
  REQUIRE(w.stream->begin().ok());
  w.served->scheduler->run_one_step();  // the first is done, and its memory the second one's
  w.reactor->OnCancel();
  w.served->scheduler->run_one_step();
  w.write();
  CHECK(w.served->scheduler->idle());
  CHECK(w.served->scheduler->stats().ended[static_cast<std::size_t>(RequestOutcome::kCancelled)] >
        0);
  CHECK(w.writer->finishes == 1);
  CHECK(w.writer->code == grpc::StatusCode::CANCELLED);
}

TEST_CASE("a first sequence that finds no room is refused at once, and not waited for") {
  WaitingScore w(/*max_queued_requests=*/10);
  SessionLease others = w.lease(1000);
  const grpc::Status refused = w.stream->begin();
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  w.reactor->run(nullptr);
  w.reactor->refuse(refused);
  others = SessionLease();
  CHECK(w.queued() == 0);
}

}  // namespace
}  // namespace lintel::testing
