// SPDX-License-Identifier: Apache-2.0
// Idle workers that help others with their steps.
#include <atomic>
#include <chrono>
#include <thread>

#include "server/engine/intra_op_parallelism.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Its products have several groups of columns to split.
std::shared_ptr<const Transformer> wide_model() {
  static const auto model = changed_model(
      TinyModel::kTokens, [](ModelConfig& config) { config.d_ff = 300; }, [](ModelWeights&) {});
  return model;
}

std::vector<std::int32_t> tokens_alone(const Transformer& model, const GenerationRequest& request,
                                       int sample = 0) {
  SequenceState sequence = model.new_sequence();
  std::vector<std::int32_t> tokens;
  for (const RecordedToken& each : generate_naively(model, request, sample, sequence).tokens) {
    tokens.push_back(each.token);
  }
  return tokens;
}

TEST_CASE("a step that idle workers share has the bits of one worker's") {
  Core core(wide_model(), {.workers = 3, .step_threads = 3});
  const GenerationRequest request = tokens_request(3, 300, 5);
  const auto expected = tokens_alone(*core.model, request);
  for (int round = 0; round < 200; ++round) {
    const auto call = core.submit(request);
    call.sink->wait_until_finished();
    REQUIRE(call.sink->tokens() == expected);
    if (round >= 10 && core.scheduler.stats().shared_steps > 0) break;
  }
  CHECK(core.scheduler.stats().shared_steps > 0);
  CHECK(core.scheduler.stats().shared_steps <= core.scheduler.stats().steps);
}

TEST_CASE("threads that shared a step draw from a large vocabulary what one draws") {
  const auto model = changed_model(
      TinyModel::kTokens, [](ModelConfig& config) { config.vocab_size = 5'000; },
      [](ModelWeights&) {});
  Core core(model, {.workers = 2, .max_batch_rows = 8, .step_threads = 2});
  GenerationRequest requests[2] = {tokens_request(3, 60, 1), tokens_request(3, 60, 2)};
  requests[1].sampling.repetition_penalty = 1.3f;
  std::vector<std::vector<std::int32_t>> expected[2];
  for (const std::size_t which : {0, 1}) {
    requests[which].num_samples = 8;
    for (int i = 0; i < 8; ++i) {
      expected[which].push_back(tokens_alone(*model, requests[which], i));
    }
  }
  // One request at a time: the other worker is idle and helps. On a busy machine it may come late.
  const auto shared = [&] { return core.scheduler.stats().shared_steps; };
  const auto goes_on = [&](std::size_t round) {
    if (round >= 100) return round < 400 && shared() == 0;
    return round < 10 || shared() < 200;
  };
  for (std::size_t round = 0; goes_on(round); ++round) {
    const auto call = core.submit(requests[round % 2]);
    call.sink->wait_until_finished();
    for (int i = 0; i < 8; ++i) {
      REQUIRE(call.sink->tokens(i) == expected[round % 2][static_cast<std::size_t>(i)]);
    }
  }
  CHECK(shared() > 0);
}

TEST_CASE("one thread a step is what was asked for") {
  Core core(wide_model(), {.workers = 2, .step_threads = 1});
  core.submit(tokens_request(3, 300, 5)).sink->wait_until_finished();
  CHECK(core.scheduler.stats().shared_steps == 0);
}

TEST_CASE("a worker that helps takes a request at once") {
  Core core(wide_model(), {.workers = 2, .step_threads = 2});
  const auto endless = core.submit(tokens_request(3, 100'000'000, 1));
  const GenerationRequest request = tokens_request(3, 20, 2);
  const auto expected = tokens_alone(*core.model, request);
  for (int i = 0; i < 50; ++i) {
    const auto call = core.submit(request);
    call.sink->wait_until_finished();
    REQUIRE(call.sink->outcome == RequestOutcome::kDone);
    REQUIRE(call.sink->tokens() == expected);
  }
  CHECK(endless.sink->finishes == 0);
  core.scheduler.cancel(endless.handle);
  endless.sink->wait_until_finished();
  CHECK(endless.sink->outcome == RequestOutcome::kCancelled);
}

TEST_CASE("a worker that helps ends its own requests at their deadlines") {
  const SteadyClock clock;
  const auto model = wide_model();
  SessionManager store({.session_memory_bytes = 1u << 30}, clock);
  Scheduler scheduler(model, {.workers = 2, .step_threads = 2}, clock);
  const auto paused = std::make_shared<RecordingSink>();
  paused->room = 1;
  GenerationRequest request = tokens_request(3, 1'000'000, 1);
  request.deadline = clock.now() + std::chrono::milliseconds(50);
  scheduler.submit(request, std::move(store.lease_one_shot("tiny", model, 0, 1).lease), paused);
  const auto endless = std::make_shared<RecordingSink>();
  const RequestHandle handle;
  scheduler.submit(tokens_request(3, 100'000'000, 2),
                   std::move(store.lease_one_shot("tiny", model, 0, 1).lease), endless, handle);
  paused->wait_until_finished();
  CHECK(paused->outcome == RequestOutcome::kDeadline);
  CHECK(endless->finishes == 0);
  scheduler.stop();  // in the midst of a step that is shared
  CHECK(endless->outcome == RequestOutcome::kShutdown);
}

// ---- IntraOpParallelism

TEST_CASE("idle workers are shared out among those that have requests") {
  IntraOpParallelism help(8, 8);
  help.set_leading(0, true);
  CHECK(help.available() == 8);
  help.set_leading(1, true);
  help.set_leading(1, true);
  CHECK(help.available() == 4);
  help.set_leading(2, true);
  CHECK(help.available() == 2);
  for (std::size_t worker = 3; worker < 8; ++worker) help.set_leading(worker, true);
  CHECK(help.available() == 1);
  for (std::size_t worker = 1; worker < 8; ++worker) help.set_leading(worker, false);
  CHECK(help.available() == 8);
}

TEST_CASE("workers of all models count where cores are counted") {
  IntraOpParallelism help(4, 4);
  help.set_leading(0, true);
  {
    IntraOpParallelism of_another_model(4, 4);
    of_another_model.set_leading(0, true);
    of_another_model.set_leading(3, true);
    CHECK(help.available() == 2);
    of_another_model.set_leading(1, true);
    CHECK(help.available() == 1);
  }
  CHECK(help.available() == 4);
}

TEST_CASE("a helper is called, comes, and leaves when it is not wanted") {
  IntraOpParallelism help(2, 2);
  const ManualClock clock;
  const auto never = [] { return false; };
  CHECK_FALSE(help.help(1, never, clock));  // no worker wants it
  help.set_leading(0, true);
  CHECK(help.want(0, 1) == 1);
  std::atomic<bool> stop{false};
  std::atomic<bool> result{false};
  std::thread helper([&] {
    result = help.help(
        1, [&] { return stop.load(); }, clock);
  });
  while (help.want(0, 1) > 0) std::this_thread::yield();
  CHECK(help.team(0).threads() == 2);
  stop = true;
  helper.join();
  CHECK(result);
  CHECK(help.team(0).threads() == 1);

  std::thread unwanted([&] { result = help.help(1, never, clock); });
  while (help.want(0, 1) > 0) std::this_thread::yield();
  help.set_leading(0, false);
  unwanted.join();
  CHECK_FALSE(result);
}

}  // namespace
}  // namespace lintel::testing
