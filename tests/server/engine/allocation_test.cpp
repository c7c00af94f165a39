// SPDX-License-Identifier: Apache-2.0
// The decoding path allocates nothing once it is warm; elsewhere memory may be refused.
#include "tests/server/support/harness.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Takes what comes and keeps nothing.
class CountingSink final : public TokenSink {
 public:
  bool on_token(const TokenEvent& event) override {
    ++tokens;
    tops += event.top.size();
    return true;
  }
  void on_sample_finish(const SampleResult&) override { ++finished; }
  void on_step_end() override {}
  void on_finish(RequestOutcome) override {}
  std::size_t tokens = 0;
  std::size_t tops = 0;
  std::size_t finished = 0;
};

TEST_CASE("steps of a warm worker allocate nothing", "[promise]") {
  const auto kind = GENERATE(TinyModel::kTokens, TinyModel::kBytes);
  const auto speculation = GENERATE(Speculation::kOff, Speculation::kAuto, Speculation::kOn);
  CAPTURE(kind == TinyModel::kBytes, static_cast<int>(speculation));
  const auto model = tiny_model(kind);
  Core core(model, {.workers = 0, .max_batch_rows = 32, .speculation = speculation});
  const auto sink = std::make_shared<CountingSink>();
  for (std::uint64_t i = 0; i < 6; ++i) {
    GenerationRequest request;
    request.prompt = {static_cast<std::int32_t>(i), 2};
    request.max_new_tokens = 250;
    request.seed = i;
    request.log2_probs = i % 2 == 0;
    request.top_log2_probs = i == 1 ? 3 : 0;
    request.sampling.top_k = i == 2 ? 10 : 0;
    request.sampling.top_p = i == 3 ? 0.9f : 1.0f;
    request.sampling.frequency_penalty = i >= 3 ? 0.2f : 0.0f;
    request.sampling.penalty_window = i == 3 ? 20 : 0;
    if (i == 5) request.sampling.logit_bias = {{11, 3.0f}};
    if (i == 0 && kind == TinyModel::kBytes) request.stop.strings = {"never to be seen"};
    core.scheduler.submit(
        std::move(request),
        core.store.lease_one_shot("tiny", model, /*max_tokens=*/252, /*num_samples=*/1).lease,
        sink);
  }
  for (int step = 0; step < 12; ++step) core.scheduler.run_one_step();
  const std::size_t before = sink->tokens;
  const AllocationCount count;
  for (int step = 0; step < 10; ++step) core.scheduler.run_one_step();
  CHECK(count.so_far() == 0);
  CHECK(sink->finished == 0);  // the end of a request is another matter
  CHECK(sink->tokens >= before + 10 * 6);
  CHECK(sink->tops > 0);
}

TEST_CASE("a request that there is no memory to accept is refused only, and leaves nothing") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, {.workers = 0});
  const auto lease = [&] { return core.store.lease_one_shot("tiny", model, 0, 1).lease; };
  const auto request = [] {
    GenerationRequest wanted;
    wanted.prompt = {1, 2};
    wanted.max_new_tokens = 1;
    return wanted;
  };
  // Wherever in the queue it would stand: every 64th place is one that memory is asked for.
  std::size_t failures = 0;
  for (std::size_t queued = 0; queued < 130; ++queued) {
    const std::size_t bytes = core.store.bytes_in_use();
    for (std::size_t successes = 0;; ++successes) {
      const auto sink = std::make_shared<RecordingSink>();
      GenerationRequest wanted = request();
      SessionLease leased = lease();
      bool refused = false;
      {
        const FailingAllocation failing(successes);
        try {
          core.scheduler.submit(std::move(wanted), std::move(leased), sink);
        } catch (const std::bad_alloc&) {
          refused = true;
        }
        if (!failing.has_failed()) break;
      }
      REQUIRE(refused);
      REQUIRE(sink->finishes == 0);
      REQUIRE(core.scheduler.stats().queued == queued);
      leased = SessionLease();
      REQUIRE(core.store.bytes_in_use() == bytes);
      ++failures;
    }
    REQUIRE(core.scheduler.stats().queued == queued + 1);
  }
  CHECK(failures > 130);
  core.run();
  CHECK(core.scheduler.stats().ended[static_cast<std::size_t>(RequestOutcome::kDone)] == 130);
  CHECK(core.store.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
