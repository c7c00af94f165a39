// SPDX-License-Identifier: Apache-2.0
// Prompts that come at once and begin alike: one is read, the others wait for it, at most as long
// as reading would take.
#include <memory>
#include <string>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr SessionManager::Options kRoomForAll{.session_memory_bytes = std::size_t{1} << 30};
constexpr std::int64_t kShared = 500;

// `shared` tokens that all have, and some of its own.
GenerationRequest alike(std::uint64_t i, std::int64_t shared = kShared) {
  GenerationRequest request = tokens_request(static_cast<std::size_t>(shared), 12, /*seed=*/1);
  for (std::uint64_t k = 0; k < 3 * i; ++k) {
    request.prompt.push_back(static_cast<std::int32_t>((i + 7 * k) % 50));
  }
  request.seed = i;
  request.log2_probs = true;
  request.sampling.repetition_penalty = 1.2f;
  return request;
}

struct Together {
  explicit Together(std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens))
      : core(std::move(model), options(), kRoomForAll, {}), twin(core.model) {}
  static Scheduler::Options options() {
    Scheduler::Options options = without_threads();
    options.prefill_rows_per_step = 16;
    return options;
  }
  void step(int steps = 1) {
    for (int i = 0; i < steps; ++i) {
      core.scheduler.run_one_step();
      core.clock.advance(std::chrono::milliseconds(1));
    }
  }
  void require_the_bits_of_misses(const Core::Call& call, const GenerationRequest& request) {
    REQUIRE(call.sink->outcome == RequestOutcome::kDone);
    const auto expected = twin.generate(request);
    REQUIRE(call.sink->recorded == expected->recorded);
    CHECK(call.sink->result().cached_tokens + call.sink->result().prompt_tokens ==
          expected->result().prompt_tokens);
  }

  Core core;
  Core twin;
};

TEST_CASE("of prompts that come at once one is read, and the others join it: every kind",
          "[prefix]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  Together room(tiny_model(TinyModel::kBytes, attention));
  std::vector<GenerationRequest> requests;
  std::vector<Core::Call> calls;
  constexpr std::int64_t kBeginning = 60;
  for (std::uint64_t i = 0; i < 16; ++i) {
    GenerationRequest request;
    for (std::int32_t k = 0; k < kBeginning; ++k) request.prompt.push_back(k * k % 7);
    if (i > 0) request.prompt.push_back(static_cast<std::int32_t>(7 + i));
    request.max_new_tokens = 12;
    request.seed = i;
    request.log2_probs = true;
    requests.push_back(std::move(request));
    calls.push_back(room.core.submit(requests.back()));
  }
  room.step(2000);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    room.require_the_bits_of_misses(calls[i], requests[i]);
    CHECK(calls[i].sink->result().cached_tokens == (i == 0 ? 0 : kBeginning));
  }
  const PrefixCache::Stats stats = room.core.prefixes.stats();
  CHECK(stats.joins == 15);
  CHECK(stats.hits == 15);
  CHECK(stats.misses == 1);
  CHECK(room.core.scheduler.stats().prompt_tokens == kBeginning + 15);
}

TEST_CASE("prompts that are the same join at their end, those that part earlier where they part",
          "[prefix]") {
  Together room;
  const GenerationRequest first = alike(1), same = alike(1);
  GenerationRequest shorter = alike(0);
  shorter.prompt.resize(300);
  shorter.prompt.push_back((first.prompt[300] + 1) % 50);
  const auto a = room.core.submit(first);
  room.step(1);
  room.core.clock.advance(std::chrono::milliseconds(10));  // its pace is slow
  const auto b = room.core.submit(same), c = room.core.submit(shorter);
  room.step(500);
  room.require_the_bits_of_misses(a, first);
  room.require_the_bits_of_misses(b, same);
  room.require_the_bits_of_misses(c, shorter);
  CHECK(b.sink->result().cached_tokens == static_cast<std::int64_t>(same.prompt.size()));
  CHECK(c.sink->result().cached_tokens == 300);
}

TEST_CASE("the others continue when the prompt that is read ends early", "[prefix]") {
  Together room;
  const GenerationRequest request = alike(3);
  const auto first = room.core.submit(alike(0));
  const auto second = room.core.submit(request), third = room.core.submit(alike(4));
  room.step(4);
  CHECK(room.core.scheduler.stats().prompt_tokens <= 4 * 64 + 1);  // of the first alone
  room.core.scheduler.cancel(first.handle);
  room.step(500);
  CHECK(first.sink->outcome == RequestOutcome::kCancelled);
  room.require_the_bits_of_misses(second, request);
  CHECK(second.sink->result().cached_tokens == 0);
  room.require_the_bits_of_misses(third, alike(4));
}

TEST_CASE("a prompt waits no longer than reading would take", "[prefix]") {
  Together room;
  const GenerationRequest request = alike(3);
  // Pays for its tokens, and has to wait.
  GenerationRequest slow = alike(0);
  struct Poor final : TokenAllowance {
    Duration pay(std::int64_t) override { return std::chrono::hours(1); }
  };
  slow.allowance = std::make_shared<Poor>();
  const auto first = room.core.submit(slow);
  room.step(2);
  const auto second = room.core.submit(request);
  // Some 16 tokens a millisecond.
  room.step(400);
  room.require_the_bits_of_misses(second, request);
  CHECK(second.sink->result().cached_tokens == 0);
  CHECK(second.sink->result().prompt <= std::chrono::milliseconds(200));
  CHECK(first.sink->finishes == 0);
  CHECK(room.core.prefixes.stats().joins == 0);
  room.core.scheduler.cancel(first.handle);
  room.step(2);
}

TEST_CASE("a request that waits for another's prompt can be cancelled, and can expire",
          "[prefix]") {
  Together room;
  const auto first = room.core.submit(alike(0));
  GenerationRequest brief = alike(3);
  brief.deadline = room.core.clock.now() + std::chrono::milliseconds(3);
  const auto second = room.core.submit(brief), third = room.core.submit(alike(2));
  room.step(2);
  room.core.scheduler.cancel(third.handle);
  room.step(4);
  CHECK(second.sink->outcome == RequestOutcome::kDeadline);
  CHECK(third.sink->outcome == RequestOutcome::kCancelled);
  room.step(500);
  room.require_the_bits_of_misses(first, alike(0));
}

TEST_CASE("a prompt waits for none of another owner or adapter, or with little in common",
          "[prefix]") {
  Together room;
  const auto first = room.core.submit(alike(0), "", nullptr, nullptr, "alice");
  const auto others = room.core.submit(alike(1), "", nullptr, nullptr, "bob");
  GenerationRequest unlike = alike(1);
  unlike.prompt[20] = (unlike.prompt[20] + 1) % 50;
  const auto own = room.core.submit(unlike, "", nullptr, nullptr, "alice");
  room.step(500);
  for (const auto* call : {&first, &others, &own}) {
    CHECK(call->sink->result().cached_tokens == 0);
  }
  CHECK(room.core.prefixes.stats().joins == 0);
}

// For ThreadSanitizer: workers that wait for each other's prompts.
TEST_CASE("prompts join across workers, and the bits are those of one alone", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, {.workers = 3}, kRoomForAll, {});
  Core twin(model);
  for (std::uint64_t round = 0; round < 4; ++round) {
    std::vector<GenerationRequest> requests;
    std::vector<Core::Call> calls;
    for (std::uint64_t i = 0; i < 24; ++i) {
      requests.push_back(alike(i % 6));
      requests.back().prompt.insert(requests.back().prompt.begin(),
                                    static_cast<std::int32_t>(4 * round + i % 2));
      calls.push_back(core.submit(requests.back()));
      if (i % 7 == 3) core.scheduler.cancel(calls.back().handle);
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i].sink->wait_until_finished();
      if (i % 7 == 3) continue;
      REQUIRE(calls[i].sink->outcome == RequestOutcome::kDone);
      REQUIRE(calls[i].sink->recorded == twin.generate(requests[i])->recorded);
    }
  }
}

}  // namespace
}  // namespace lintel::testing
