// SPDX-License-Identifier: Apache-2.0
// Steps that fail for want of memory: their requests end, all others are unaffected.
#include <new>
#include <optional>

#include "tests/server/support/harness.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

GenerationRequest request_of(std::uint64_t seed) { return tokens_request(3, 6, seed); }

TEST_CASE("a step without memory fails those it was for, and closes their sessions") {
  // Keys and values grow with the sequence: the model's step asks for memory.
  const auto model = tiny_model(TinyModel::kTokens, "softmax");
  std::size_t failed_steps = 0;
  for (std::size_t successes = 0;; ++successes) {
    CAPTURE(successes);
    Core core(model, {.workers = 0, .speculation = Speculation::kOff});
    const auto expected = core.generate(request_of(1), core.new_session(100))->tokens();
    // The worker's lists have room for two from here on.
    core.submit(request_of(1), core.new_session(100));
    core.submit(request_of(2), core.new_session(100));
    core.run();

    const std::string ids[] = {core.new_session(100), core.new_session(100)};
    const Core::Call calls[] = {core.submit(request_of(1), ids[0]),
                                core.submit(request_of(1), ids[1])};
    bool has_failed = false;
    {
      const FailingAllocation failing(successes);
      core.scheduler.run_one_step();
      has_failed = failing.has_failed();
    }
    // A request that comes afterwards has the tokens it has alone.
    const auto neighbour = core.submit(request_of(1), core.new_session(100));
    core.run();
    int failed = 0;
    for (int i : {0, 1}) {
      const RecordingSink& sink = *calls[i].sink;
      REQUIRE(sink.finishes == 1);
      if (sink.outcome == RequestOutcome::kInternal) {
        ++failed;
        REQUIRE(!core.store.get(ids[i]));  // the progress of its state is unknown
      } else {
        REQUIRE(sink.outcome == RequestOutcome::kDone);
        REQUIRE(sink.tokens() == expected);
        REQUIRE(core.session_tokens(ids[i]) == 9);
      }
    }
    REQUIRE(neighbour.sink->tokens() == expected);
    REQUIRE(failed ==
            static_cast<int>(
                core.scheduler.stats().ended[static_cast<std::size_t>(RequestOutcome::kInternal)]));
    REQUIRE(core.scheduler.idle());
    if (failed == 2) ++failed_steps;
    if (!has_failed) {
      REQUIRE(failed == 0);
      break;
    }
    REQUIRE(failed > 0);
  }
  CHECK(failed_steps > 0);
}

TEST_CASE("a worker without memory for its own lists fails its requests, and continues") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, {.workers = 1, .speculation = Speculation::kOff});
  const std::string id = core.new_session();
  // The sink is full after its first token, and there is no memory to note that it pauses.
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 1;
  std::optional<FailingAllocation> failing;
  sink->when_token = [&](const TokenEvent& event) {
    if (event.position == 3) failing.emplace(0);
    sink->room = event.position == 3 ? 1 : 100;
  };
  core.submit(tokens_request(3, 3), id, sink);
  sink->wait_until_finished();
  CHECK(sink->outcome == RequestOutcome::kInternal);
  CHECK(sink->finishes == 1);
  const auto next = core.submit(tokens_request(3, 3));
  next.sink->wait_until_finished();
  CHECK(next.sink->outcome == RequestOutcome::kDone);
  CHECK(!core.store.get(id));
}

}  // namespace
}  // namespace lintel::testing
