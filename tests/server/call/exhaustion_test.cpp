// Memory that fails anywhere on the way of an answer: the call ends all the same, once.
//
// The streams run as gRPC runs them, but for a writer that keeps nothing: gRPC's own needs memory
// to send anything at all.
#include <catch2/catch.hpp>

#include "server/kserve/infer_tokens.h"
#include "server/kserve/unary_call.h"
#include "server/v1/generate_stream.h"
#include "server/v1/score_stream.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/allocation_count.h"

namespace lintel::testing {
namespace {

// What gRPC would be told, counted.
template <typename Response>
class CountingWriter final : public grpc::ServerCallbackWriter<Response> {
 public:
  explicit CountingWriter(grpc::ServerWriteReactor<Response>* reactor) : bound_(reactor) {
    this->BindReactor(reactor);
  }
  void Finish(grpc::Status status) override {
    ++finishes;
    code = status.error_code();
  }
  void SendInitialMetadata() override {}
  void Write(const Response*, grpc::WriteOptions) override { ++in_flight; }
  void WriteAndFinish(const Response*, grpc::WriteOptions, grpc::Status status) override {
    Finish(std::move(status));
  }

  int finishes = 0;
  int in_flight = 0;  // writes
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;

 private:
  grpc::internal::ServerReactor* reactor() override { return bound_; }
  void CallOnDone() override {}
  grpc::ServerWriteReactor<Response>* const bound_;
};

struct ExhaustionFixture {
  explicit ExhaustionFixture(const std::string& name) {
    served->name = name;
    served->transformer = tiny_models({name}).at(name);
    served->scheduler = std::make_unique<Scheduler>(
        served->transformer, Scheduler::Options{.workers = 0, .max_batch_rows = 8}, clock);
    model = served;
  }
  ~ExhaustionFixture() { served->scheduler->stop(); }

  std::unique_ptr<CallScope> scope(Method method) {
    auto made = std::make_unique<CallScope>(gate, context, method);
    REQUIRE(made->enter_stream().ok());
    return made;
  }
  PreparedGeneration prepared(std::int64_t max_new_tokens, int num_samples = 1) {
    PreparedGeneration made;
    made.model = model;
    made.checked.request.prompt = {1, 2};
    made.checked.request.max_new_tokens = max_new_tokens;
    made.checked.request.num_samples = num_samples;
    made.checked.request.log2_probs = true;
    made.lease = store.lease_one_shot("m", model->transformer, 0, num_samples).lease;
    return made;
  }
  // Nobody holds the model or memory any more, and no call is counted.
  void check_nothing_left() {
    CHECK(calls.count() == 0);
    CHECK(served->scheduler->idle());
    CHECK(store.bytes_in_use() == 0);
    CHECK(served.use_count() == 2);
  }

  ManualClock clock;
  std::shared_ptr<ServedModel> served = std::make_shared<ServedModel>();
  SharedModel model;
  SessionStore store{{.session_memory_bytes = 1u << 30}, clock};
  ActiveCalls calls;
  Quotas quotas{{.max_streams = 1}, clock};
  RequestCounters counters;
  CallGate gate{nullptr, false, {}, {Role::kGenerate, Role::kScore}, quotas, counters, clock};
  grpc::CallbackServerContext context;
};

// Runs `body(f)` with the first, the second, ... allocation failing, until none does; `check(f)`
// after each.
template <typename Body, typename Check>
void for_each_failure(ExhaustionFixture& f, std::size_t least, Body body, Check check) {
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

// Steps and writes until the call is over, or for as long as it could take.
template <typename Response>
void run(ExhaustionFixture& f, CountingWriter<Response>& writer,
         grpc::ServerWriteReactor<Response>& reactor) {
  for (int i = 0; i < 200 && writer.finishes == 0; ++i) {
    f.served->scheduler->run_one_step();
    while (writer.in_flight > 0) {
      --writer.in_flight;
      reactor.OnWriteDone(true);
    }
  }
}

TEST_CASE("whichever allocation fails, a Generate call ends once and holds nothing") {
  const bool gone = GENERATE(false, true);
  CAPTURE(gone);
  ExhaustionFixture f("tokens");
  int finishes = 0;
  grpc::StatusCode code{};
  for_each_failure(
      f, 20,
      [&](std::size_t successes) {
        PreparedGeneration prepared = f.prepared(30, 2);
        prepared.checked.request.top_log2_probs = 2;
        GenerateStream::Options options;
        options.outbox_tokens = 8;
        options.max_tokens_per_message = 3;
        options.num_samples = 2;
        options.top_log2_probs = 2;
        const auto stream = std::make_shared<GenerateStream>(f.model, f.clock, f.calls, options);
        auto scope = f.scope(Method::kGenerate);
        auto* const reactor = stream->start(f.calls, scope);
        CountingWriter<v1::GenerateResponse> writer(reactor);
        stream->attach(
            f.served->scheduler
                ->submit(std::move(prepared.checked.request), std::move(prepared.lease), stream)
                .handle);
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

TEST_CASE("whichever allocation fails, a Score call ends once and holds nothing") {
  ExhaustionFixture f("tokens");
  int finishes = 0;
  grpc::StatusCode code{};
  for_each_failure(
      f, 5,
      [&](std::size_t successes) {
        ScoreSequences sequences;
        sequences.values = {1, 2, 3, 4, 5, 6};
        sequences.ends = {3, 6};
        const auto stream = std::make_shared<ScoreStream>(
            f.model, f.store, sequences, ScoreStream::Options{.window = 2, .owner = "somebody"});
        auto scope = f.scope(Method::kScore);
        auto* const reactor = stream->start(f.calls, scope);
        CountingWriter<v1::ScoreResponse> writer(reactor);
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

TEST_CASE("whichever allocation fails, a ModelInfer call is answered once and holds nothing") {
  ExhaustionFixture f("tokens");
  int answers = 0;
  grpc::Status status;
  std::size_t tokens = 0;
  for_each_failure(
      f, 20,
      [&](std::size_t successes) {
        answers = 0;
        tokens = 0;
        const auto run = std::make_shared<RowGatherer>(
            [&](const grpc::Status& ended, std::vector<RowValues> rows, ValueUse) {
              ++answers;
              status = copy_of(ended);
              for (const RowValues& row : rows) tokens += row.tokens.size();
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

TEST_CASE("whichever allocation fails, a streamed inference ends once and holds nothing") {
  ExhaustionFixture f("tokens");
  int ends = 0;
  bool refused = false;
  for_each_failure(
      f, 20,
      [&](std::size_t successes) {
        ends = 0;
        int in_flight = 0;
        InferTokens::Callbacks callbacks;
        callbacks.write = [&](const inference::ModelStreamInferResponse*) { ++in_flight; };
        callbacks.gone = [&](grpc::Status) { ++ends; };
        callbacks.over = [] {};
        InferTokens::Options options;
        options.outbox_tokens = 8;
        options.max_tokens_per_message = 3;
        const auto tokens = std::make_shared<InferTokens>(std::make_shared<const TensorRequest>(),
                                                          inference::ModelInferResponse(), options,
                                                          f.clock, f.calls, std::move(callbacks));
        PreparedGeneration prepared = f.prepared(30);
        const FailingAllocation failing(successes);
        refused = !tokens->begin(std::move(prepared)).ok();
        for (int i = 0; i < 200 && ends == 0 && !refused; ++i) {
          f.served->scheduler->run_one_step();
          while (in_flight > 0) {
            --in_flight;
            if (tokens->written(true)) ++ends;
          }
        }
        return failing.has_failed();
      },
      [&](bool failed) {
        REQUIRE(ends == (refused ? 0 : 1));
        if (!failed) CHECK_FALSE(refused);
      });
}

TEST_CASE("a row that is done keeps no model while its call goes on") {
  ExhaustionFixture f("tokens");
  const auto run =
      std::make_shared<RowGatherer>([](const grpc::Status&, std::vector<RowValues>, ValueUse) {});
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
  ExhaustionFixture f("tokens");
  Scheduler::Options options{.workers = 1};
  f.served->scheduler = std::make_unique<Scheduler>(f.model->transformer, options, f.clock);
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> done{false};
    const auto run = std::make_shared<RowGatherer>(
        [&](const grpc::Status&, std::vector<RowValues>, ValueUse) { done = true; });
    std::vector<PreparedGeneration> rows;
    rows.push_back(f.prepared(1));
    run->begin(std::move(rows));
    REQUIRE(eventually([&] { return done.load() && f.served.use_count() == 2; }));
  }
}

}  // namespace
}  // namespace lintel::testing
