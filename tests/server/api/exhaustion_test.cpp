// SPDX-License-Identifier: Apache-2.0
// Memory that fails anywhere on the way of an answer: the call ends all the same, once.
//
// The streams run as gRPC runs them, but for a writer that keeps nothing: gRPC's own needs memory
// to send anything at all.
#include "server/api/kserve/unary_call.h"
#include "server/api/lintel_v1/generation_service.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "tests/server/support/call_fixture.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::shared_ptr<const TensorRequest> asks_for_tokens() {
  auto request = std::make_shared<TensorRequest>();
  request->tokens = true;
  return request;
}

constexpr StreamingOptions kStreaming{.chunk_interval_ms = std::chrono::milliseconds(0),
                                      .outbox_tokens = 8};

// Runs `body(f)` with the first, the second, ... allocation failing, until none does; `check(f)`
// after each.
template <typename Body, typename Check>
void for_each_failure(CallFixture& f, std::size_t least, Body body, Check check) {
  std::size_t failures = 0;
  for (std::size_t successes = 0;; ++successes) {
    CAPTURE(successes);
    const bool failed = body(successes);
    check(failed);
    f.check_nothing_left();
    if (!failed) break;
    ++failures;
  }
  CHECK(failures >= least);
}

TEST_CASE("any failed allocation: a Generate call ends once and holds nothing") {
  const bool gone = GENERATE(false, true);
  CAPTURE(gone);
  CallFixture f("tokens");
  int finishes = 0;
  grpc::StatusCode code{};
  for_each_failure(
      f, 20,
      [&](std::size_t successes) {
        PreparedGeneration prepared = f.prepared(30, 2);
        prepared.checked.request.top_log2_probs = 2;
        prepared.checked.max_tokens_per_message = 3;
        auto* const reactor = f.entered<GenerateStream>(Method::kGenerate);
        CountingWriter writer(reactor);
        REQUIRE(reactor->begin(std::move(prepared), /*spells_special=*/false, kStreaming, f.clock)
                    .ok());
        bool failed = false;
        {
          const FailingAllocation failing(successes);
          f.served->scheduler->run_one_step();
          f.served->scheduler->run_one_step();
          if (gone) reactor->OnCancel();
          run(f, writer, *reactor);
          finishes = writer.finishes;
          code = writer.code;
          if (finishes > 0) reactor->OnDone();
          failed = failing.has_failed();
        }
        return failed;
      },
      [&](bool failed) {
        REQUIRE(finishes == 1);
        if (!failed) CHECK(code == (gone ? grpc::StatusCode::CANCELLED : grpc::StatusCode::OK));
      });
}

TEST_CASE("any failed allocation: a Score call ends once and holds nothing") {
  CallFixture f("tokens");
  int finishes = 0;
  grpc::StatusCode code{};
  for_each_failure(
      f, 5,
      [&](std::size_t successes) {
        ScoreSequences sequences;
        sequences.tokens = {1, 2, 3, 4, 5, 6};
        sequences.ends = {3, 6};
        const auto stream = std::make_shared<ScoreStream>(
            f.model, f.store, sequences, ScoreStream::Options{.window = 2, .owner = "alice"});
        auto* const reactor = f.entered<ScoreStream::Reactor>(Method::kScore);
        reactor->run(stream);
        CountingWriter writer(reactor);
        REQUIRE(stream->begin().ok());
        const FailingAllocation failing(successes);
        run(f, writer, *reactor);
        finishes = writer.finishes;
        code = writer.code;
        if (finishes > 0) reactor->OnDone();
        return failing.has_failed();
      },
      [&](bool failed) {
        REQUIRE(finishes == 1);
        if (!failed) CHECK(code == grpc::StatusCode::OK);
      });
}

TEST_CASE("any failed allocation: a ModelInfer call is answered once and holds nothing") {
  CallFixture f("tokens");
  int answers = 0;
  grpc::Status status;
  std::size_t tokens = 0;
  for_each_failure(
      f, 20,
      [&](std::size_t successes) {
        answers = 0;
        tokens = 0;
        const auto run = std::make_shared<RowGatherer>(
            asks_for_tokens(),
            [&](const grpc::Status& ended, std::vector<RowTokens> rows, TokenUse) {
              ++answers;
              status = copy_of(ended);
              for (const RowTokens& row : rows) tokens += row.tokens.size();
            });
        std::vector<PreparedGeneration> rows;
        for (int i = 0; i < 3; ++i) rows.push_back(f.prepared(20));
        const FailingAllocation failing(successes);
        run->begin(std::move(rows));
        for (int i = 0; i < 200 && answers == 0; ++i) f.served->scheduler->run_one_step();
        return failing.has_failed();
      },
      [&](bool failed) {
        REQUIRE(answers == 1);
        if (status.ok()) CHECK(tokens == 60);
        if (!failed) CHECK(status.ok());
      });
}

// Writes as the stream of inferences does.
struct InferenceWire final : ResponseWriter {
  void write(std::span<const OutboxEntry> entries) override {
    response.fill(entries, /*is_last=*/false);
    ++in_flight;
  }
  void end(std::span<const OutboxEntry> entries, grpc::Status status, TokenUse) override {
    status.ok() ? response.fill(entries, /*is_last=*/true) : response.fill(status);
    ++ends;
  }
  void gone(grpc::Status, TokenUse) noexcept override { ++ends; }

  StreamedResponse response{asks_for_tokens(), {}};
  int in_flight = 0;
  int ends = 0;
};

TEST_CASE("any failed allocation: a streamed inference ends once and holds nothing") {
  CallFixture f("tokens");
  int ends = 0;
  bool refused = false;
  for_each_failure(
      f, 20,
      [&](std::size_t successes) {
        InferenceWire wire;
        TokenStream::Options options;
        options.outbox_tokens = 8;
        options.max_tokens_per_message = 3;
        const auto outbox = std::make_shared<TokenStream>(wire, f.model, f.clock, f.calls, options);
        PreparedGeneration prepared = f.prepared(30);
        const FailingAllocation failing(successes);
        refused = !catch_exceptions([&] {
                     return outbox->submit(std::move(prepared.checked.request),
                                           std::move(prepared.lease));
                   }).ok();
        for (int i = 0; i < 200 && wire.ends == 0 && !refused; ++i) {
          f.served->scheduler->run_one_step();
          while (wire.in_flight > 0) {
            --wire.in_flight;
            outbox->written(true);
          }
        }
        ends = wire.ends;
        prepared = {};
        return failing.has_failed();
      },
      [&](bool failed) {
        REQUIRE(ends == (refused ? 0 : 1));
        if (!failed) CHECK_FALSE(refused);
      });
}

TEST_CASE("a row that is done keeps no model while its call continues") {
  CallFixture f("tokens");
  const auto run = std::make_shared<RowGatherer>(
      asks_for_tokens(), [](const grpc::Status&, std::vector<RowTokens>, TokenUse) {});
  std::vector<PreparedGeneration> rows;
  for (int i = 0; i < 2; ++i) rows.push_back(f.prepared(3));
  run->begin(std::move(rows));
  CHECK(f.served.use_count() > 2);
  while (f.served->scheduler->run_one_step()) {
  }
  // The run lives as long as its call may be cancelled.
  f.check_nothing_left();
}

// The row is over before the thread that submitted it has its handle.
TEST_CASE("a row that is done at once keeps no model either") {
  CallFixture f("tokens");
  Scheduler::Options options{.workers = 1};
  f.served->scheduler = std::make_unique<Scheduler>(f.model->transformer, options, f.clock);
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> done{false};
    const auto run = std::make_shared<RowGatherer>(
        asks_for_tokens(),
        [&](const grpc::Status&, std::vector<RowTokens>, TokenUse) { done = true; });
    std::vector<PreparedGeneration> rows;
    rows.push_back(f.prepared(1));
    run->begin(std::move(rows));
    REQUIRE(eventually([&] { return done.load() && f.served.use_count() == 2; }));
  }
}

}  // namespace
}  // namespace lintel::testing
