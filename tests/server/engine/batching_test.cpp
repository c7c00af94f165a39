// SPDX-License-Identifier: Apache-2.0
// Requests that share a worker: joining, leaving, fairness, limits and failures.
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::seconds;

// These tests count steps and rows.
constexpr Scheduler::Options kOneRowAValue = {.workers = 0, .speculation = Speculation::kOff};

TEST_CASE("a request joins at the next step and leaves at once") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto first = core.submit(tokens_request(1, 10));
  core.scheduler.run_one_step();
  REQUIRE(first.sink->recorded[0].size() == 1);
  const auto second = core.submit(tokens_request(1, 2));
  core.scheduler.run_one_step();
  REQUIRE(second.sink->recorded[0].size() == 1);
  REQUIRE(first.sink->recorded[0].size() == 2);
  core.scheduler.run_one_step();
  REQUIRE(second.sink->outcome == RequestOutcome::kDone);
  REQUIRE(core.scheduler.stats().running == 1);
  REQUIRE(core.scheduler.stats().rows == 5);
}

TEST_CASE("a long prompt never stalls the decoding of others", "[threat-56]") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0,
                                             .max_batch_rows = 16,
                                             .prefill_rows_per_step = 3,
                                             .speculation = Speculation::kOff});
  const auto decoding = core.submit(tokens_request(1, 100));
  core.scheduler.run_one_step();
  const auto reading = core.submit(tokens_request(60, 5));
  std::size_t produced = decoding.sink->recorded[0].size();
  while (reading.sink->recorded[0].empty()) {
    const auto rows_before = core.scheduler.stats().rows;
    REQUIRE(core.scheduler.run_one_step());
    REQUIRE(core.scheduler.stats().rows - rows_before <= 1 + 3);
    REQUIRE(decoding.sink->recorded[0].size() == ++produced);
  }
  REQUIRE(core.scheduler.stats().prompt_tokens == 61);
  REQUIRE(produced == 1 + 20);
}

TEST_CASE("runs of given tokens do not stall the decoding of others either") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0,
                                             .max_batch_rows = 16,
                                             .prefill_rows_per_step = 3,
                                             .speculation = Speculation::kOff});
  const auto decoding = core.submit(tokens_request(1, 100));
  core.scheduler.run_one_step();
  GenerationRequest occluded = tokens_request(1, 60);
  for (int position = 1; position < 50; ++position) occluded.given.push_back({position, 5});
  const auto reading = core.submit(occluded);
  for (std::size_t step = 2; step < 10; ++step) {
    const auto rows_before = core.scheduler.stats().rows;
    core.scheduler.run_one_step();
    REQUIRE(core.scheduler.stats().rows - rows_before <= 2 + 3);
    REQUIRE(decoding.sink->recorded[0].size() == step);
  }
  core.run();
  REQUIRE(reading.sink->recorded[0].size() == 60);
}

TEST_CASE("a prompt may take the whole step when no request decodes") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0,
                                             .max_batch_rows = 16,
                                             .prefill_rows_per_step = 3,
                                             .speculation = Speculation::kOff});
  core.submit(tokens_request(32, 1));
  core.scheduler.run_one_step();
  REQUIRE(core.scheduler.stats().rows == 16);
}

TEST_CASE("prompts share the rows of a step") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0,
                                             .max_batch_rows = 16,
                                             .prefill_rows_per_step = 2,
                                             .speculation = Speculation::kOff});
  const auto decoding = core.submit(tokens_request(1, 200));
  core.scheduler.run_one_step();
  std::vector<Core::Call> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(core.submit(tokens_request(20, 1)));
  // 95 rows at 2 a step: no request is ready long before the others.
  std::size_t first_done = 0;
  std::size_t last_done = 0;
  for (std::size_t step = 1; last_done == 0; ++step) {
    core.scheduler.run_one_step();
    std::size_t done = 0;
    for (const auto& call : calls) done += call.sink->finished() ? 1 : 0;
    if (done > 0 && first_done == 0) first_done = step;
    if (done == calls.size()) last_done = step;
  }
  REQUIRE(last_done == 48);  // 19 rows each; the last token of a prompt is fed as a decoding row
  REQUIRE(first_done >= 45);
}

TEST_CASE("the first token of a short prompt does not wait for ten long ones") {
  constexpr std::size_t kShort = 24;
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0,
                                             .max_batch_rows = 16,
                                             .prefill_rows_per_step = 4,
                                             .speculation = Speculation::kOff});
  const GenerationRequest request = tokens_request(kShort, 3, /*seed=*/7);
  const auto steps_to_first = [&](const std::string& session) {
    const auto call = core.submit(request, session);
    std::size_t steps = 0;
    for (; call.sink->recorded[0].empty(); ++steps) core.scheduler.run_one_step();
    while (!call.sink->finished()) core.scheduler.run_one_step();
    return std::pair(steps, call.sink->tokens());
  };
  core.submit(tokens_request(1, 220));
  const std::string session = core.new_session();
  const std::string same = core.new_session();
  const auto past = core.submit(tokens_request(80, 1), session);
  const auto same_past = core.submit(tokens_request(80, 1), same);
  while (!past.sink->finished() || !same_past.sink->finished()) core.scheduler.run_one_step();
  const auto alone = steps_to_first("");
  const auto continued = steps_to_first(session);
  CHECK(alone.first >= kShort / 4);
  for (int i = 0; i < 10; ++i) core.submit(tokens_request(190, 1));
  for (int step = 0; step < 90; ++step) core.scheduler.run_one_step();
  REQUIRE(core.scheduler.stats().running == 11);
  const auto behind = steps_to_first("");
  CHECK(behind.first <= 2 * alone.first + 1);
  CHECK(behind.second == alone.second);
  // Tokens that a session has had read before are no part of its prompt.
  const auto continued_behind = steps_to_first(same);
  CHECK(continued_behind.first <= 2 * continued.first + 1);
  CHECK(continued_behind.second == continued.second);
}

TEST_CASE("a prompt beside an answer has the rows that its step has time for") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0,
                                             .max_batch_rows = 16,
                                             .prefill_rows_per_step = 0,
                                             .speculation = Speculation::kOff});
  const auto answer = core.submit(tokens_request(1, 100));
  core.scheduler.run_one_step();
  const auto reading = core.submit(tokens_request(60, 1));
  const auto rows_before = core.scheduler.stats().rows;
  int steps = 0;
  for (; reading.sink->recorded[0].empty(); ++steps) {
    const auto rows = core.scheduler.stats().rows;
    REQUIRE(core.scheduler.run_one_step());
    CHECK(core.scheduler.stats().rows - rows <= 1 + 2);
  }
  // It is assumed that a row takes a quarter of a step of one: 1.71 rows leave 0.7 of the speed.
  CHECK(steps >= 34);
  CHECK(steps <= 36);
  CHECK(core.scheduler.stats().rows - rows_before == static_cast<std::uint64_t>(steps) + 60);
}

TEST_CASE("a full queue refuses at once and releases the lease") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_queued_requests = 2, .speculation = Speculation::kOff});
  core.submit(tokens_request(1, 1));
  core.submit(tokens_request(1, 1));
  const std::string id = core.new_session();
  const auto refused = core.submit(tokens_request(1, 1), id);
  REQUIRE(refused.error == Scheduler::SubmitError::kQueueFull);
  REQUIRE(refused.sink->finishes == 0);
  REQUIRE(core.store.lease(id).refusal.error == SessionError::kNone);
  REQUIRE(core.scheduler.stats().queued == 2);
  core.scheduler.cancel(refused.handle);
  core.run();
  REQUIRE(refused.sink->finishes == 0);
  REQUIRE(core.submit(tokens_request(1, 1)).error == Scheduler::SubmitError::kNone);
}

TEST_CASE("a large request waits its turn and is not overtaken") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 4, .speculation = Speculation::kOff});
  const auto small = core.submit(tokens_request(1, 3));
  core.scheduler.run_one_step();
  GenerationRequest wide = tokens_request(1, 2);
  wide.num_samples = 4;
  const auto large = core.submit(wide);
  const auto later = core.submit(tokens_request(1, 1));
  core.scheduler.run_one_step();
  core.scheduler.run_one_step();
  REQUIRE(small.sink->finished());
  REQUIRE(!later.sink->finished());
  core.scheduler.run_one_step();
  core.scheduler.run_one_step();
  REQUIRE(large.sink->finished());
  core.run();
  REQUIRE(later.sink->finished());
}

TEST_CASE("more samples than rows are refused") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 4, .speculation = Speculation::kOff});
  GenerationRequest request = tokens_request(1, 1);
  request.num_samples = 5;
  REQUIRE_THROWS_AS(core.submit(request), std::invalid_argument);
}

TEST_CASE("cancel ends a request within one step, wherever it is") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 1, .speculation = Speculation::kOff});
  const auto sink = std::make_shared<RecordingSink>();
  SECTION("decoding") {
    const auto call = core.submit(tokens_request(1, 100), "", sink);
    core.scheduler.run_one_step();
    core.scheduler.cancel(call.handle);
    core.scheduler.cancel(call.handle);
  }
  SECTION("reading its prompt") {
    const auto call = core.submit(tokens_request(50, 100), "", sink);
    core.scheduler.run_one_step();
    core.scheduler.cancel(call.handle);
  }
  SECTION("queued") {
    core.submit(tokens_request(1, 2));
    core.scheduler.run_one_step();
    const auto call = core.submit(tokens_request(1, 100), "", sink);
    core.scheduler.cancel(call.handle);
  }
  SECTION("paused") {
    sink->room = 1;
    const auto call = core.submit(tokens_request(1, 100), "", sink);
    core.scheduler.run_one_step();
    core.scheduler.run_one_step();
    REQUIRE(sink->recorded[0].size() == 1);
    core.scheduler.cancel(call.handle);
  }
  SECTION("from inside a callback") {
    RequestHandle handle;
    sink->when_token = [&](const TokenEvent&) { core.scheduler.cancel(handle); };
    handle = core.submit(tokens_request(1, 100), "", sink).handle;
    core.scheduler.run_one_step();
  }
  REQUIRE(!sink->finished());
  core.scheduler.run_one_step();
  REQUIRE(sink->outcome == RequestOutcome::kCancelled);
  REQUIRE(sink->result().reason == FinishReason::kCancelled);
  core.run();
  REQUIRE(sink->finishes == 1);
  REQUIRE(sink->out_of_order == 0);
  REQUIRE(core.scheduler.idle());
  REQUIRE(core.store.bytes_in_use() == 0);
}

TEST_CASE("a deadline ends a request within one step, with its tokens so far") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 1, .speculation = Speculation::kOff});
  const auto sink = std::make_shared<RecordingSink>();
  GenerationRequest request = tokens_request(1, 100);
  request.deadline = core.clock.now() + seconds(10);
  std::size_t produced = 0;
  SECTION("decoding") {
    core.submit(request, "", sink);
    core.scheduler.run_one_step();
    produced = 1;
  }
  SECTION("queued") {
    core.submit(tokens_request(1, 50));
    core.scheduler.run_one_step();
    core.submit(request, "", sink);
  }
  SECTION("paused") {
    sink->room = 1;
    core.submit(request, "", sink);
    core.scheduler.run_one_step();
    produced = 1;
  }
  core.clock.advance(seconds(9));
  core.scheduler.run_one_step();
  if (sink->recorded[0].size() > produced) ++produced;
  REQUIRE(!sink->finished());
  core.clock.advance(seconds(1));
  core.scheduler.run_one_step();
  REQUIRE(sink->outcome == RequestOutcome::kDeadline);
  REQUIRE(sink->result().reason == FinishReason::kDeadline);
  REQUIRE(sink->recorded[0].size() == produced);
  REQUIRE(sink->result().generated_tokens == static_cast<std::int64_t>(produced));
  core.run();
  REQUIRE(sink->finishes == 1);
}

TEST_CASE("a deadline flushes text that was held back") {
  Core core(tiny_model(TinyModel::kBytes), kOneRowAValue);
  GenerationRequest request;
  request.prompt = {'a'};
  request.max_new_tokens = 50;
  request.sampling.logit_bias = {{'z', 1000.0f}};
  request.stop.strings = {"zzzzzz"};
  request.deadline = core.clock.now() + seconds(1);
  const auto call = core.submit(request);
  core.scheduler.run_one_step();
  core.scheduler.run_one_step();
  REQUIRE(call.sink->recorded[0].empty());
  core.clock.advance(seconds(1));
  core.run();
  REQUIRE(call.sink->text() == "zz");
  REQUIRE(call.sink->out_of_order == 0);
}

TEST_CASE("each sample leaves when it ends, and the others continue") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  GenerationRequest request = tokens_request(2, 30);
  request.num_samples = 6;
  const auto free_run = core.generate(request);
  request.stop.tokens = {free_run->tokens(2)[4]};
  const auto sink = core.generate(request);
  bool some_stopped = false;
  for (int i = 0; i < 6; ++i) {
    const auto whole = free_run->tokens(i);
    const auto stop = std::find(whole.begin(), whole.end(), request.stop.tokens[0]);
    REQUIRE(sink->tokens(i) == std::vector<std::int32_t>(whole.begin(), stop));
    some_stopped |= stop != whole.end();
  }
  REQUIRE(some_stopped);
}

// A token whose embedding overflows the first layer norm.
std::shared_ptr<const Transformer> poisonous_model(std::int32_t poison) {
  return changed_model(TinyModel::kTokens, {}, [poison](ModelWeights& weights) {
    for (float& x : weights.value_embedding.row(static_cast<std::size_t>(poison))) x = 3e38f;
  });
}

TEST_CASE("an output that is not finite ends its request and affects no other") {
  Core core(poisonous_model(13));
  const auto expected = core.generate(tokens_request(3, 12, 2))->tokens();
  const auto healthy = core.submit(tokens_request(3, 12, 2));
  GenerationRequest bad = tokens_request(1, 12);
  bad.prompt = {1, 13, 2};
  SECTION("one sample, of a session") {
    const std::string id = core.new_session();
    const auto sick = core.submit(bad, id);
    core.run();
    REQUIRE(sick.sink->outcome == RequestOutcome::kNonFinite);
    REQUIRE(sick.sink->recorded[0].empty());
    REQUIRE(!core.store.get(id));  // it could not continue
  }
  SECTION("several samples") {
    bad.num_samples = 3;
    const auto sick = core.submit(bad);
    core.run();
    REQUIRE(sick.sink->outcome == RequestOutcome::kNonFinite);
    REQUIRE(sick.sink->finishes == 1);
  }
  REQUIRE(healthy.sink->outcome == RequestOutcome::kDone);
  REQUIRE(healthy.sink->tokens() == expected);
  REQUIRE(core.store.bytes_in_use() == 0);
}

TEST_CASE("a sink that throws ends its own request only") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto expected = core.generate(tokens_request(3, 12, 2))->tokens();
  const auto healthy = core.submit(tokens_request(3, 12, 2));
  const auto sink = std::make_shared<RecordingSink>();
  sink->when_token = [](const TokenEvent&) { throw std::runtime_error("a sink's trouble"); };
  core.submit(tokens_request(3, 12), "", sink);
  core.run();
  REQUIRE(sink->outcome == RequestOutcome::kInternal);
  REQUIRE(sink->finishes == 1);
  REQUIRE(healthy.sink->tokens() == expected);
}

TEST_CASE("draining refuses new requests and lets the others finish") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto running = core.submit(tokens_request(1, 5));
  core.scheduler.run_one_step();
  core.scheduler.begin_drain();
  REQUIRE(core.submit(tokens_request(1, 5)).error == Scheduler::SubmitError::kDraining);
  REQUIRE(!core.scheduler.idle());
  core.run();
  REQUIRE(running.sink->outcome == RequestOutcome::kDone);
  REQUIRE(core.scheduler.idle());
}

TEST_CASE("stop ends all requests: running, paused and queued") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 1, .speculation = Speculation::kOff});
  const auto paused = std::make_shared<RecordingSink>();
  paused->room = 1;
  core.submit(tokens_request(1, 50), "", paused);
  core.scheduler.run_one_step();
  const std::string id = core.new_session();
  const auto running = core.submit(tokens_request(1, 50), id);
  core.scheduler.run_one_step();
  const auto queued = core.submit(tokens_request(1, 50));
  core.scheduler.stop();
  core.scheduler.stop();
  for (const auto& sink : {paused, running.sink, queued.sink}) {
    REQUIRE(sink->outcome == RequestOutcome::kShutdown);
    REQUIRE(sink->result().reason == FinishReason::kCancelled);
    REQUIRE(sink->finishes == 1);
    REQUIRE(sink->out_of_order == 0);
  }
  REQUIRE(core.scheduler.idle());
  REQUIRE(core.store.get(id));  // a session outlives the calls of a shutdown
  REQUIRE(core.submit(tokens_request(1, 1)).error == Scheduler::SubmitError::kDraining);
}

TEST_CASE("options that make no sense are refused") {
  ManualClock clock;
  const auto model = tiny_model(TinyModel::kTokens);
  REQUIRE_THROWS_AS(Scheduler(model, {.workers = -1}, clock), std::invalid_argument);
  REQUIRE_THROWS_AS(Scheduler(model, {.max_batch_rows = 0}, clock), std::invalid_argument);
  REQUIRE_THROWS_AS(Scheduler(model, {.max_queued_requests = 0}, clock), std::invalid_argument);
  REQUIRE_THROWS_AS(Scheduler(model, {.prefill_rows_per_step = -1}, clock), std::invalid_argument);
}

}  // namespace
}  // namespace lintel::testing
