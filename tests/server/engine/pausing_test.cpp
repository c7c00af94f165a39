// SPDX-License-Identifier: Apache-2.0
// Requests whose sink is full: pausing and resuming.
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// These tests count steps and rows.
constexpr Scheduler::Options kOneRowAValue = {.workers = 0, .speculation = Speculation::kOff};

TEST_CASE("a full sink pauses its request and slows no other") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 1, .speculation = Speculation::kOff});
  const auto expected = core.generate(tokens_request(3, 20))->tokens();
  const auto slow = std::make_shared<RecordingSink>();
  slow->room = 4;
  const auto call = core.submit(tokens_request(3, 20), "", slow);
  core.run();
  REQUIRE(slow->recorded[0].size() == 4);
  REQUIRE(core.scheduler.stats().running == 1);
  REQUIRE(!core.scheduler.idle());
  // Its row is free for others.
  const auto other = core.submit(tokens_request(1, 10));
  for (int i = 0; i < 5; ++i) core.scheduler.run_one_step();
  slow->room = 1000;
  core.scheduler.resume(call.handle);
  core.scheduler.run_one_step();
  REQUIRE(slow->recorded[0].size() == 4);  // no row is free yet
  core.run();
  REQUIRE(other.sink->finished());
  REQUIRE(slow->tokens() == expected);
  REQUIRE(slow->finishes == 1);
}

TEST_CASE("a resumed request goes before queued ones") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 1, .speculation = Speculation::kOff});
  const auto slow = std::make_shared<RecordingSink>();
  slow->room = 1;
  const auto call = core.submit(tokens_request(1, 2), "", slow);
  core.scheduler.run_one_step();
  const auto first = core.submit(tokens_request(1, 2));
  const auto second = core.submit(tokens_request(1, 1));
  core.scheduler.run_one_step();
  slow->room = 10;
  core.scheduler.resume(call.handle);
  core.scheduler.run_one_step();
  REQUIRE(first.sink->finished());
  core.scheduler.run_one_step();
  REQUIRE(slow->finished());
  REQUIRE(!second.sink->finished());
}

TEST_CASE("small requests do not keep a large resumed one waiting") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 2, .speculation = Speculation::kOff});
  GenerationRequest wide = tokens_request(1, 2);
  wide.num_samples = 2;
  const auto slow = std::make_shared<RecordingSink>(2);
  slow->room = 1;
  const auto call = core.submit(wide, "", slow);
  core.scheduler.run_one_step();
  core.submit(tokens_request(1, 3));
  core.scheduler.run_one_step();
  slow->room = 10;
  core.scheduler.resume(call.handle);
  const auto small = core.submit(tokens_request(1, 5));
  for (int i = 0; i < 3; ++i) core.scheduler.run_one_step();
  REQUIRE(slow->finished());
  REQUIRE(small.sink->recorded[0].empty());
}

TEST_CASE("a resume between the refusal and the end of the step is not lost") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto sink = std::make_shared<RecordingSink>();
  RequestHandle handle;
  sink->room = 1;
  sink->when_token = [&](const TokenEvent&) {
    if (sink->recorded[0].size() == 2) {  // full, and read empty before the step ends
      sink->room = 1000;
    }
  };
  GenerationRequest request = tokens_request(1, 10);
  request.given = {{1, 7}, {2, 8}, {3, 9}};  // several tokens in one step; the first fills the sink
  handle = core.submit(request, "", sink).handle;
  sink->when_token = [&](const TokenEvent&) {
    if (sink->recorded[0].size() == 3) {
      sink->room = 1000;
      core.scheduler.resume(handle);
    }
  };
  core.run();
  REQUIRE(sink->recorded[0].size() == 10);
  REQUIRE(sink->finished());
}

TEST_CASE("an old resume does not undo a later pause") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 3;
  const auto call = core.submit(tokens_request(1, 10), "", sink);
  core.scheduler.run_one_step();
  core.scheduler.resume(call.handle);
  core.scheduler.resume(call.handle);
  core.run();
  REQUIRE(sink->recorded[0].size() == 3);
}

TEST_CASE("the sink receives the end of every step that gave it a token") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto sink = core.generate(tokens_request(1, 10));
  REQUIRE(sink->step_ends == 10);
}

}  // namespace
}  // namespace lintel::testing
