// SPDX-License-Identifier: Apache-2.0
// Callers take turns: in the queue, in the rows of steps, and in the time for which they have them.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "server/engine/request_queue.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr std::int64_t kEndless = 1'000'000;

Scheduler::Options rows_of_a_step(int max_batch_rows) {
  return {.workers = 0, .max_batch_rows = max_batch_rows, .speculation = Speculation::kOff};
}

GenerationRequest request_of(const std::string& caller, std::int64_t max_new_tokens,
                             std::uint64_t seed = 1) {
  GenerationRequest request = tokens_request(1, max_new_tokens, seed);
  request.caller = caller;
  return request;
}

std::size_t produced(const Core::Call& call) { return call.sink->recorded[0].size(); }

void step(Core& core, int steps = 1) {
  for (int i = 0; i < steps; ++i) core.scheduler.run_one_step();
}

// A queue of requests that are never stepped, known by their seeds.
struct TurnsOfQueue {
  void push(const std::string& caller, std::uint64_t seed, int num_samples = 1) {
    GenerationRequest wanted = request_of(caller, 1, seed);
    wanted.num_samples = num_samples;
    auto made = std::make_unique<SequenceGroup>(
        wanted, store.lease_one_shot("tiny", model, 0, num_samples).lease,
        std::make_shared<RecordingSink>(num_samples), std::make_shared<RequestControl>(), *model,
        clock.now(), counters);
    seeds[made.get()] = seed;
    REQUIRE(queue.push(made) == RequestQueue::Push::kAccepted);
  }
  // Keeps what it pops.
  std::uint64_t pop() {
    popped.push_back(queue.pop(0, /*max_rows=*/64));
    REQUIRE(popped.back() != nullptr);
    return seeds.at(popped.back().get());
  }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager store{{.session_memory_bytes = 1u << 30}, clock};
  SchedulerMetrics counters;
  std::map<const SequenceGroup*, std::uint64_t> seeds;
  RequestQueue queue{100, /*num_workers=*/1};
  std::vector<std::unique_ptr<SequenceGroup>> popped;
};

TEST_CASE("callers take turns in the queue, and requests of one caller keep their order") {
  TurnsOfQueue f;
  for (const std::uint64_t seed : {1, 2, 3, 4}) f.push("a", seed);
  for (const std::uint64_t seed : {11, 12}) f.push("b", seed);
  f.push("c", 21);
  std::vector<std::uint64_t> order;
  for (int i = 0; i < 7; ++i) order.push_back(f.pop());
  CHECK(order == std::vector<std::uint64_t>{1, 11, 21, 2, 12, 3, 4});
  CHECK(f.queue.size() == 0);
}

TEST_CASE("the caller with the fewest rows is next, in any order of arrival") {
  TurnsOfQueue f;
  f.push("a", 1, /*num_samples=*/5);
  CHECK(f.pop() == 1);
  for (const std::uint64_t seed : {2, 3}) f.push("a", seed);
  for (const std::uint64_t seed : {11, 12, 13}) f.push("b", seed);
  std::vector<std::uint64_t> order;
  for (int i = 0; i < 3; ++i) order.push_back(f.pop());
  CHECK(order == std::vector<std::uint64_t>{11, 12, 13});
  f.popped.erase(f.popped.begin());  // a's five rows are over
  f.push("b", 14);
  CHECK(f.pop() == 2);
  CHECK(f.pop() == 3);
  CHECK(f.pop() == 14);
}

TEST_CASE("a queue forgets callers whose requests have gone") {
  TurnsOfQueue f;
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0; i < 50; ++i) f.push("caller " + std::to_string(i), i);
    f.queue.set_running_rows(0, 0);
    for (int i = 0; i < 25; ++i) f.pop();
    CHECK(f.queue.num_callers() == 50);
    f.popped.clear();
    CHECK(f.queue.num_callers() == 25);
    f.queue.take_all();
    CHECK(f.queue.num_callers() == 0);
  }
}

TEST_CASE("one caller's backlog keeps another waiting for one step", "[threat-55]") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(4));
  const auto expected = core.generate(request_of("b", 5, 9))->tokens();
  std::vector<Core::Call> many;
  for (std::uint64_t i = 0; i < 20; ++i) many.push_back(core.submit(request_of("a", kEndless, i)));
  step(core, 10);
  const auto other = core.submit(request_of("b", 5, 9));
  step(core, 5);  // and not one more than it has tokens
  REQUIRE(other.sink->finished());
  CHECK(other.sink->tokens() == expected);
  // The last of the first caller gave its row up, and has it back before those after it.
  CHECK(produced(many[2]) == 15);
  CHECK(produced(many[3]) == 10);
  CHECK(core.scheduler.stats().queued == 16);
  step(core);
  CHECK(produced(many[3]) == 11);
  CHECK(produced(many[4]) == 0);
}

TEST_CASE("rows that change hands change no token") {
  const bool has_drafts = GENERATE(false, true);
  Scheduler::Options options = rows_of_a_step(3);
  if (has_drafts) options.speculation = Speculation::kOn;
  Core core(tiny_model(TinyModel::kTokens), options);
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint64_t i = 0; i < 12; ++i) {
    expected.push_back(core.generate(request_of("", 40, i))->tokens());
  }
  std::vector<Core::Call> calls;
  for (std::uint64_t i = 0; i < 12; ++i) {
    calls.push_back(core.submit(request_of(i < 6 ? "a" : "caller " + std::to_string(i), 40, i)));
  }
  while (core.scheduler.run_one_step()) core.clock.advance(RequestQueue::kTurn / 2);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    REQUIRE(calls[i].sink->finishes == 1);
    CHECK(calls[i].sink->tokens() == expected[i]);
  }
}

TEST_CASE("callers that are more than the rows have them in turns", "[threat-55]") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(2));
  std::vector<Core::Call> calls;
  for (const char* const caller : {"a", "b", "c", "d", "e"}) {
    calls.push_back(core.submit(request_of(caller, kEndless)));
  }
  step(core, 10);
  CHECK(produced(calls[0]) == 10);
  CHECK(produced(calls[1]) == 10);
  CHECK(produced(calls[2]) == 0);  // their turn is not over
  for (int turn = 0; turn < 9; ++turn) {
    core.clock.advance(RequestQueue::kTurn);
    step(core, 10);
  }
  // Ten turns of ten steps and two rows for five callers.
  for (const Core::Call& call : calls) CHECK(produced(call) == 40);
}

TEST_CASE("a long prompt among many callers is read without a pause, two of four at once",
          "[threat-55]") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(4));
  std::vector<Core::Call> calls;
  for (int i = 0; i < 40; ++i) {
    calls.push_back(core.submit(request_of("caller " + std::to_string(i), kEndless)));
  }
  std::vector<Core::Call> prompts;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = tokens_request(100, 1);
    request.caller = "reader " + std::to_string(i);
    prompts.push_back(core.submit(std::move(request)));
  }
  const auto finished = [&] {
    return std::ranges::count_if(prompts, [](const auto& call) { return call.sink->finished(); });
  };
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      step(core);
      core.clock.advance(RequestQueue::kTurn / 4);
    }
  };
  run(4 * 40 / 4);  // turns of those before them
  const std::size_t before = produced(calls[0]);
  // Two are read evenly, since the one that has had fewer tokens read goes first: both end late.
  run(115);
  CHECK(finished() == 2);
  CHECK(produced(calls[0]) > before);  // others have their turns in the meantime
  run(105);
  CHECK(finished() == 3);
}

TEST_CASE("a new caller waits for a turn of those before it, and not for their ends") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(4));
  for (int i = 0; i < 8; ++i) core.submit(request_of("caller " + std::to_string(i), kEndless));
  step(core, 3);
  const auto last = core.submit(request_of("last", 2));
  int turns = 0;
  for (; turns < 10 && !last.sink->finished(); ++turns) {
    core.clock.advance(RequestQueue::kTurn);
    step(core, 3);
  }
  CHECK(turns == 2);  // four others waited before it
}

TEST_CASE("a single caller keeps its order: no request gives a row up") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(2));
  std::vector<Core::Call> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(core.submit(request_of("a", 30)));
  for (int i = 0; i < 30; ++i) {
    step(core);
    core.clock.advance(RequestQueue::kTurn);
  }
  CHECK(calls[0].sink->finished());
  CHECK(calls[1].sink->finished());
  CHECK(produced(calls[2]) == 0);
}

TEST_CASE("streams whose readers come back do not go before another caller's request") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(3));
  std::vector<Core::Call> slow;
  for (int i = 0; i < 6; ++i) {
    const auto sink = std::make_shared<RecordingSink>();
    sink->room = 1;
    slow.push_back(core.submit(request_of("a", kEndless), "", sink));
  }
  step(core, 6);  // all of them are full
  const auto busy = core.submit(request_of("b", kEndless));
  step(core);
  const auto other = core.submit(request_of("c", 3));
  for (const Core::Call& call : slow) {
    call.sink->room = kEndless;
    core.scheduler.resume(call.handle);
  }
  step(core, 4);
  CHECK(other.sink->finished());
  CHECK(produced(busy) >= 4);
}

TEST_CASE("a request for many rows gets them from another caller's streams within a turn") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(4));
  for (int i = 0; i < 8; ++i) core.submit(request_of("a", kEndless));
  step(core, 3);
  GenerationRequest wide = request_of("b", 3);
  wide.num_samples = 4;
  const auto other = core.submit(wide);
  step(core, 3);
  CHECK(produced(other) == 0);  // the other would have fewer rows than it
  core.clock.advance(RequestQueue::kTurn);
  step(core, 3);
  CHECK(other.sink->finished());
}

TEST_CASE("a request that gave its rows up is cancelled, expires and counts like any that runs") {
  Core core(tiny_model(TinyModel::kTokens), rows_of_a_step(2));
  GenerationRequest expires = request_of("a", kEndless);
  expires.deadline = core.clock.now() + std::chrono::seconds(1);
  const bool is_cancelled = GENERATE(true, false);
  core.submit(request_of("a", kEndless));
  const auto yields = core.submit(expires);
  step(core, 2);
  core.submit(request_of("b", kEndless));
  step(core, 2);
  REQUIRE(produced(yields) == 2);
  CHECK(core.scheduler.stats().queued == 0);
  CHECK(core.scheduler.stats().running == 3);
  is_cancelled ? core.scheduler.cancel(yields.handle) : core.clock.advance(std::chrono::seconds(1));
  step(core);
  REQUIRE(yields.sink->finished());
  CHECK(yields.sink->outcome ==
        (is_cancelled ? RequestOutcome::kCancelled : RequestOutcome::kDeadline));
  CHECK(produced(yields) == 2);
  CHECK(core.scheduler.stats().running == 2);
}

TEST_CASE("callers share workers whose readers pause and resume, and every token is right") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 3, .max_batch_rows = 2});
  constexpr std::uint64_t kCalls = 60;
  Core alone(core.model);
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint64_t i = 0; i < kCalls; ++i) {
    expected.push_back(alone.generate(request_of("", 200, i))->tokens());
  }
  std::vector<Core::Call> calls;
  for (std::uint64_t i = 0; i < kCalls; ++i) {
    Core::Call call;
    call.sink = std::make_shared<RecordingSink>();
    // Full every few tokens, and read empty at once.
    call.sink->when_token = [&core, sink = call.sink.get(), handle = call.handle,
                             i](const TokenEvent&) {
      const bool is_full = sink->recorded[0].size() % (3 + i % 5) == 0;
      sink->room = is_full ? 1 : kEndless;
      if (is_full) core.scheduler.resume(handle);
    };
    auto lease = core.store.lease_one_shot("tiny", core.model, 0, 1).lease;
    const std::string caller = i % 2 == 0 ? "a" : "caller " + std::to_string(i % 7);
    REQUIRE(core.scheduler.submit(request_of(caller, 200, i), std::move(lease), call.sink,
                                  call.handle) == Scheduler::SubmitError::kNone);
    calls.push_back(std::move(call));
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].sink->wait_until_finished();
    CHECK(calls[i].sink->outcome == RequestOutcome::kDone);
    CHECK(calls[i].sink->tokens() == expected[i]);
  }
}

}  // namespace
}  // namespace lintel::testing
