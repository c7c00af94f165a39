// SPDX-License-Identifier: Apache-2.0
// States kept after prompts: how much, for whom, and until when.
#include "server/engine/prefix_cache.h"

#include <memory>
#include <random>
#include <span>
#include <vector>

#include "tests/server/support/adapters_fixture.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/watched_memory.h"

namespace lintel::testing {
namespace {

using Tokens = std::vector<std::int32_t>;
constexpr std::size_t kMebibyte = std::size_t{1} << 20;

Tokens prompt_of(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens(size);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 50);
  return tokens;
}

// A cache and what it stands between, without a scheduler.
struct CacheFixture {
  explicit CacheFixture(std::size_t cache_bytes, std::size_t session_bytes = std::size_t{1} << 30)
      : store({.session_memory_bytes = session_bytes}, clock),
        cache({.memory_bytes = cache_bytes}, store) {}

  // Reads a prompt as a call does. Returns how many tokens it did not read.
  std::int64_t read(const Tokens& prompt, const Owner& owner = {}, SharedAdapter adapter = nullptr,
                    std::int64_t asked = 0) {
    SequenceState sequence = model->new_sequence(weights_of(adapter));
    const PrefixCache::Reader reader{*model, adapter, owner};
    const auto beginning = cache.begin(reader, prompt, {.at = asked}, sequence);
    REQUIRE(sequence.num_tokens() == beginning.cached);
    if (beginning.keep_at == 0) return beginning.cached;
    REQUIRE(beginning.keep_at > beginning.cached);
    // The sequence looks to the cache as if it had been fed them.
    Workspace workspace = model->new_workspace(1);
    while (sequence.num_tokens() < beginning.keep_at) {
      const std::int32_t token = prompt[static_cast<std::size_t>(sequence.num_tokens())];
      if (sequence.pending) {
        const BatchRow row{*sequence.pending, &sequence, /*wants_output=*/false,
                           /*is_draft=*/false};
        model->step(std::span(&row, 1), workspace);
      }
      sequence.pending = token;
    }
    cache.keep(reader, std::span(prompt).first(static_cast<std::size_t>(beginning.keep_at)),
               sequence);
    return beginning.cached;
  }

  ManualClock clock;
  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  SessionManager store;
  PrefixCache cache;
};

TEST_CASE("the end of a prompt is kept when it comes for the second time") {
  CacheFixture room(kMebibyte);
  const Tokens prompt = prompt_of(100, 1);
  CHECK(room.read(prompt) == 0);
  CHECK(room.read(prompt) == 0);
  CHECK(room.read(prompt) == 100);
  Tokens longer = prompt;
  longer.resize(150, 7);
  CHECK(room.read(longer) == 100);
  const PrefixCache::Stats stats = room.cache.stats();
  CHECK(stats.hits == 2);
  CHECK(stats.misses == 2);
  CHECK(stats.saved_tokens == 200);
}

TEST_CASE("a state is kept where a prompt leaves an earlier one, 32 tokens on or later") {
  CacheFixture room(kMebibyte);
  const std::size_t shared = GENERATE(31, 32, 33, 500);
  CAPTURE(shared);
  const Tokens prompt = prompt_of(600, 1);
  const auto leaving = [&](std::int32_t token) {
    Tokens other(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(shared));
    other.resize(700, token == prompt[shared] ? 49 - token : token);
    return other;
  };
  CHECK(room.read(prompt) == 0);
  CHECK(room.read(leaving(8)) == 0);
  CHECK(room.read(leaving(9)) == (shared < 32 ? 0 : static_cast<std::int64_t>(shared)));
}

TEST_CASE("a state is kept where a prompt asks for it, and at no later place") {
  CacheFixture room(kMebibyte);
  const Tokens prompt = prompt_of(200, 1);
  CHECK(room.read(prompt, {}, nullptr, /*asked=*/90) == 0);
  CHECK(room.read(prompt, {}, nullptr, /*asked=*/90) == 90);
  CHECK(room.read(prompt) == 90);
  CHECK(room.read(prompt) == 90);  // the end was seen once before
  CHECK(room.read(prompt) == 200);
}

TEST_CASE("owners and adapters have nothing of each other", "[threat-5]") {
  CacheFixture room(kMebibyte);
  const Tokens prompt = prompt_of(100, 1);
  const auto adapter = served("thin", random_adapter(TinyModel::kTokens, 3));
  for (int i = 0; i < 2; ++i) {
    CHECK(room.read(prompt, "a") == 0);
    CHECK(room.read(prompt, "b", adapter) == 0);
  }
  CHECK(room.read(prompt, "b") == 0);
  CHECK(room.read(prompt, "a", adapter) == 0);
  CHECK(room.read(prompt, {}) == 0);
  CHECK(room.read(prompt, "a") == 100);
  CHECK(room.read(prompt, "b", adapter) == 100);
}

TEST_CASE("states of an adapter do not keep it alive, and are dropped when it is gone") {
  CacheFixture room(kMebibyte);
  const Tokens prompt = prompt_of(100, 1);
  auto adapter = served("thin", random_adapter(TinyModel::kTokens, 3));
  const std::weak_ptr<const ServedAdapter> gone = adapter;
  for (int i = 0; i < 3; ++i) room.read(prompt, "a", adapter);
  REQUIRE(room.cache.stats().hits == 1);
  adapter.reset();
  REQUIRE(gone.expired());
  room.cache.forget_gone_adapters();
  CHECK(room.cache.stats().bytes == 0);
}

TEST_CASE("a model that goes leaves nothing") {
  const auto model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager store({.session_memory_bytes = 1u << 30}, clock);
  PrefixCache cache({.memory_bytes = kMebibyte}, store);
  const auto other = tiny_model(TinyModel::kBytes);
  {
    Scheduler scheduler(model, without_threads(), clock, &cache);
    for (int i = 0; i < 2; ++i) {
      const auto sink = std::make_shared<RecordingSink>();
      scheduler.submit(tokens_request(100, 1, /*seed=*/1),
                       store.lease_one_shot("tiny", model, 0, 1).lease, sink);
      while (scheduler.run_one_step()) {
      }
      REQUIRE(sink->outcome == RequestOutcome::kDone);
    }
    REQUIRE(cache.stats().bytes > 0);
  }
  CHECK(cache.stats().bytes == 0);
  CHECK(cache.stats().evictions == 0);
}

TEST_CASE("a cache never exceeds its memory, however many prompts come", "[threat-6]") {
  constexpr std::size_t kBytes = 256 << 10;
  CacheFixture room(kBytes);
  for (std::uint32_t i = 0; i < 400; ++i) {
    const Tokens prompt = prompt_of(100 + i % 50, i / 2);
    room.read(prompt, i % 3 == 0 ? "a" : "b");
    REQUIRE(room.cache.stats().bytes <= kBytes);
  }
  CHECK(room.cache.stats().evictions > 0);
  CHECK(room.cache.stats().bytes > kBytes / 8);
}

TEST_CASE("sessions are admitted as if nothing were kept, and what is kept makes room",
          "[threat-6]") {
  const auto model = tiny_model(TinyModel::kTokens);
  const std::size_t session = SessionManager::session_bytes(*model, {.max_tokens = 100});
  const std::size_t memory = 20 * session;
  CacheFixture room(kMebibyte, memory);
  std::uint32_t seed = 0;
  while (room.cache.stats().evictions == 0) {
    ++seed;
    for (int i = 0; i < 2; ++i) room.read(prompt_of(100, seed));
    REQUIRE(seed < 1000);
  }
  REQUIRE(room.cache.stats().bytes > memory / 2);
  for (int i = 0; i < 20; ++i) {
    CAPTURE(i);
    REQUIRE(room.store.create("tiny", model, 100).refusal.error == SessionError::kNone);
    REQUIRE(room.cache.stats().bytes + room.store.bytes_in_use() <= memory);
  }
  CHECK(room.store.create("tiny", model, 100).refusal.error == SessionError::kOutOfMemory);
  // Nothing is left for more.
  for (int i = 0; i < 3; ++i) room.read(prompt_of(100, 1));
  CHECK(room.cache.stats().bytes + room.store.bytes_in_use() <= memory);
}

#ifdef LINTEL_WATCHED_MEMORY
TEST_CASE("prompts and states are zeroed before their memory is freed", "[threat-6]") {
  // Tokens that nothing else has: the bytes of four of them stand in an edge and nowhere else.
  Tokens prompt(400);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * 7 % 50);
  CacheFixture room(kMebibyte);
  for (int i = 0; i < 3; ++i) room.read(prompt);
  Tokens leaving = prompt;
  leaving[200] = leaving[200] == 1 ? 2 : 1;
  for (int i = 0; i < 2; ++i) room.read(leaving);
  REQUIRE(room.cache.stats().hits == 2);
  constexpr std::size_t kLeastBytes = 700;  // edges of 200 tokens and states, and no tree's nodes
  const FreedMemory freed(kLeastBytes);
  room.cache.keep_within(0);
  CHECK(freed.blocks() >= 5);
  CHECK(freed.dirty() == 0);
  CHECK(room.cache.stats().bytes == 0);
}

TEST_CASE("an edge that is cut leaves none of its tokens in the memory that it had") {
  Tokens prompt = prompt_of(400, 3);
  Tokens leaving = prompt;
  leaving[200] = leaving[200] == 1 ? 2 : 1;
  CacheFixture room(kMebibyte);
  room.read(prompt);
  constexpr std::size_t kSome = 16;  // tokens
  const std::span<const std::int32_t> end = std::span(prompt).last(kSome);
  const FreedMemory freed(std::as_bytes(end));
  room.read(leaving);
  room.cache.keep_within(0);
  CHECK(freed.blocks() > 0);
  CHECK(freed.dirty() == 0);
}
#endif

}  // namespace
}  // namespace lintel::testing
