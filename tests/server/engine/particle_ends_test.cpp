// SPDX-License-Identifier: Apache-2.0
// Requests with particles: how they end, what they cost, and what they leave.
#include <functional>

#include "server/engine/particle_set.h"
#include "tests/server/support/harness.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"
#include "tests/support/watched_memory.h"

namespace lintel::testing {
namespace {

TEST_CASE("particles end together, with the tokens sent, and leave nothing") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model);
  GenerationRequest request;
  request.prompt = {1};
  request.max_new_tokens = 100;
  request.particles = 8;
  request.num_samples = 2;
  request.given = {{1, 7}, {4, 7}, {90, 3}};
  FinishReason reason = FinishReason::kCancelled;
  RequestOutcome outcome = RequestOutcome::kCancelled;
  std::size_t sent = 1;
  int steps = 20;
  std::function<void(const Core::Call&)> stop = [&](const Core::Call& call) {
    core.scheduler.cancel(call.handle);
  };
  SECTION("cancelled") {}
  SECTION("cancelled in the queue") {
    steps = 0;
    sent = 0;
  }
  SECTION("out of time") {
    request.deadline = core.clock.now() + std::chrono::seconds(1);
    reason = FinishReason::kDeadline;
    outcome = RequestOutcome::kDeadline;
    stop = [&](const Core::Call&) { core.clock.advance(std::chrono::seconds(2)); };
  }
  const auto call = core.submit(request);
  for (int i = 0; i < steps; ++i) core.scheduler.run_one_step();
  stop(call);
  core.run();
  CHECK(call.sink->outcome == outcome);
  for (int k = 0; k < 2; ++k) {
    const SampleResult& result = call.sink->result(k);
    CHECK(result.reason == reason);
    CHECK(call.sink->recorded[static_cast<std::size_t>(k)].size() >= sent);
    CHECK(result.generated_tokens ==
          static_cast<std::int64_t>(call.sink->recorded[static_cast<std::size_t>(k)].size()));
    CHECK_FALSE(result.log2_evidence);
  }
  CHECK(core.store.bytes_in_use() == 0);
  CHECK(core.scheduler.idle());
}

TEST_CASE("nothing new is asked of particles, and they say so") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 0;
  request.particles = 4;
  const auto sink = core.generate(request);
  CHECK(sink->recorded[0].empty());
  CHECK(sink->result().reason == FinishReason::kLength);
  CHECK(sink->result().log2_evidence == 0.0);
}

TEST_CASE("a particle is charged for as a sample is") {
  struct Counting final : TokenAllowance {
    Duration pay(std::int64_t tokens) override {
      paid += tokens;
      return Duration::zero();
    }
    std::int64_t paid = 0;
  };
  const auto allowance = std::make_shared<Counting>();
  Core core(tiny_model(TinyModel::kTokens));
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 10;
  request.particles = 5;
  request.allowance = allowance;
  core.generate(request);
  CHECK(allowance->paid == 53);
  CHECK(core.scheduler.stats().prompt_tokens == 3);
  CHECK(core.scheduler.stats().generated_tokens == 50);
}

TEST_CASE("more particles than a step has rows, and more samples than particles, are refused") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0, .max_batch_rows = 8});
  GenerationRequest request = tokens_request(2, 3);
  request.particles = 9;
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
  request.particles = 4;
  request.num_samples = 5;
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
  CHECK(core.store.bytes_in_use() == 0);
}

TEST_CASE("steps that resample particles allocate nothing", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes);
  Core core(model, {.workers = 0, .max_batch_rows = 32});
  GenerationRequest request = tokens_request(2, 200);
  request.particles = 8;
  for (std::int64_t position = 3; position < 202; position += 2) {
    request.given.push_back({position, static_cast<std::int32_t>(position % 50)});
  }
  // Takes what comes and keeps nothing.
  struct Sink final : TokenSink {
    bool on_token(const TokenEvent&) override { return ++tokens > 0; }
    void on_sample_finish(const SampleResult&) override {}
    void on_step_end() override {}
    void on_finish(RequestOutcome) override {}
    std::size_t tokens = 0;
  };
  const auto sink = std::make_shared<Sink>();
  core.scheduler.submit(request, core.store.lease_one_shot("tiny", model, 202, 8).lease, sink);
  for (int step = 0; step < 12; ++step) core.scheduler.run_one_step();
  const std::size_t before = sink->tokens;
  const AllocationCount count;
  for (int step = 0; step < 60; ++step) core.scheduler.run_one_step();
  CHECK(count.so_far() == 0);
  CHECK(sink->tokens > before + 20);
}

#ifdef LINTEL_WATCHED_MEMORY
TEST_CASE("particles zero their memory") {
  std::optional<ParticleSet> set(std::in_place, 3, 200, /*seed=*/1);
  for (int i = 0; i < 200; ++i) {
    for (int p = 0; p < 3; ++p) set->append(p, {.token = 1 + i});
  }
  constexpr std::size_t kLeastBytes = 1000;  // the tokens of one
  const FreedMemory freed(kLeastBytes);
  set.reset();
  CHECK(freed.blocks() == 3);
  CHECK(freed.dirty() == 0);
}
#endif

}  // namespace
}  // namespace lintel::testing
