// SPDX-License-Identifier: Apache-2.0
// What a request leaves in memory: nothing, neither in what is freed nor in what its worker keeps.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/drafter.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/watched_memory.h"

#ifdef LINTEL_WATCHED_MEMORY
namespace lintel::testing {
namespace {

TEST_CASE("a drafter zeroes its contexts", "[threat-7]") {
  std::optional<Drafter> drafter(tiny_config(TinyModel::kBytes));
  for (int i = 0; i < 200; ++i) {
    drafter->observe(1 + i % 9);
    drafter->next_draft();
  }
  constexpr std::size_t kLeastBytes = 1000;  // its table and its history
  const FreedMemory freed(kLeastBytes);
  drafter.reset();
  CHECK(freed.blocks() == 2);
  CHECK(freed.dirty() == 0);
}

// A request that is drafted for, and that does not end by itself.
GenerationRequest drafted() {
  GenerationRequest request = tokens_request(3, 1'000'000);
  request.sampling.logit_bias = {{11, 14.0f}};
  return request;
}

TEST_CASE("a worker keeps nothing of the drafts of a request that is over", "[threat-7]") {
  const auto model = tiny_model(TinyModel::kTokens);
  AlignedBlocks drafts(/*least_bytes=*/5'000);  // the worker's two largest blocks
  Core core(model, {.workers = 0,
                    .max_batch_rows = 16,
                    .speculation = Speculation::kOn,
                    .speculation_rows = 16});
  drafts.stop();
  REQUIRE(drafts.contents().size() == 2);
  REQUIRE(drafts.all_zero());
  GenerationRequest request = drafted();
  SECTION("done") {
    request.max_new_tokens = 40;
    const auto call = core.submit(request);
    bool was_used = false;
    while (!call.sink->finished()) {
      was_used |= !drafts.all_zero();
      REQUIRE(core.scheduler.run_one_step());
    }
    REQUIRE(was_used);
    REQUIRE(call.sink->outcome == RequestOutcome::kDone);
  }
  SECTION("cancelled, stopped or failed") {
    const int how = GENERATE(0, 1, 2);
    const auto sink = std::make_shared<RecordingSink>();
    const auto call = core.submit(request, "", sink);
    for (int step = 0; step < 5; ++step) core.scheduler.run_one_step();
    REQUIRE(!drafts.all_zero());
    if (how == 0) core.scheduler.cancel(call.handle);
    if (how == 1) core.scheduler.stop();
    if (how == 2) sink->when_token = [](const TokenEvent&) { throw std::bad_alloc(); };
    if (how != 1) core.scheduler.run_one_step();
    REQUIRE(sink->finished());
  }
  CHECK(drafts.all_zero());
}

// The first of several samples hands its text on to the others, whose texts part from it.
TEST_CASE("freed memory holds no generated tokens", "[threat-7]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const auto speculation = GENERATE(Speculation::kOff, Speculation::kOn);
  GenerationRequest request;
  request.prompt = {3, 1, 4, 1, 5};
  request.seed = 4;
  request.stop.strings = {"never to be seen"};
  std::string text;  // of sample 2 of 3, whose seed is this one's
  std::vector<std::int32_t> tokens;
  {
    Core core(model, {.workers = 0, .speculation = speculation});
    GenerationRequest alone = request;
    alone.max_new_tokens = 100;
    alone.seed += 2;
    const auto sink = core.generate(alone);
    tokens = sink->tokens();
    text = sink->text();
  }
  // From the middle: what a buffer holds that was outgrown, too.
  const bool as_text = GENERATE(true, false);
  const auto bytes = std::as_bytes(std::span(text)).subspan(2, 12);
  const auto token_bytes = std::as_bytes(std::span(tokens)).subspan(2 * sizeof(std::int32_t), 32);
  const bool has_session = GENERATE(false, true);
  CAPTURE(as_text, has_session, static_cast<int>(speculation));
  Core core(model, {.workers = 0, .speculation = speculation});
  const std::string id = core.new_session();
  std::shared_ptr<RecordingSink> sink;
  std::size_t blocks = 0;
  std::size_t dirty = 0;
  {
    const FreedMemory freed(as_text ? bytes : token_bytes);
    if (has_session) {
      request.seed += 2;
      for (int call = 0; call < 4; ++call) {
        request.max_new_tokens = 25;
        sink = core.generate(request, id);
        request.prompt.clear();
      }
      core.store.remove(id);
    } else {
      request.max_new_tokens = 100;
      request.num_samples = 3;
      sink = core.generate(request);
    }
    blocks = freed.blocks();
    dirty = freed.dirty();
  }
  if (!has_session) REQUIRE(sink->tokens(2) == tokens);  // this is what was looked for
  CHECK(blocks > 10);
  CHECK(dirty == 0);
}

}  // namespace
}  // namespace lintel::testing
#endif
