// SPDX-License-Identifier: Apache-2.0
// States of a conversation: where they are kept, which stay, and that nothing shows but less work.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr PrefixCache::Options kRoomy{.memory_bytes = std::size_t{64} << 20};
constexpr SessionManager::Options kSessionOptions{.session_memory_bytes = std::size_t{1} << 30};

Tokens random_tokens(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 50);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A turn with these tokens: `boundary` of them stay in the next one. Any token may end it.
GenerationRequest turn_of(const Tokens& prompt, std::int64_t boundary, std::int64_t call = 0,
                          bool keeps_end = false) {
  GenerationRequest request;
  request.prompt = prompt;
  request.max_new_tokens = 6;
  request.seed = static_cast<std::uint64_t>(prompt.size());
  request.log2_probs = true;
  request.cache_prefix_tokens = boundary;
  request.turn = GenerationRequest::Turn{.call = call, .keeps_end = keeps_end};
  return request;
}

Tokens tokens_of(const RecordingSink& sink) {
  Tokens tokens;
  for (const RecordedToken& token : sink.recorded.at(0)) tokens.push_back(token.token);
  return tokens;
}

TEST_CASE("a turn continues from the state at its boundary, before a call, or behind an answer",
          "[prefix]") {
  const std::string kind = GENERATE("linear", "softmax", "efficient", "qwen3_5", "rwkv7");
  const auto speculation = GENERATE(Speculation::kOff, Speculation::kOn);
  CAPTURE(kind);
  const auto family = std::filesystem::path(LINTEL_TEST_DATA) / "golden/families" / kind;
  const std::shared_ptr<const Transformer> model = std::filesystem::exists(family)
                                                       ? Transformer::load(family, {})
                                                       : tiny_model(TinyModel::kBytes, kind);
  const Scheduler::Options options{.workers = 0, .speculation = speculation};
  Core core(model, options, kSessionOptions, kRoomy);
  const auto fresh = [&](const GenerationRequest& request) {
    return Core(model, options).generate(request);
  };
  // The only token that a stop may be is one that comes.
  const Tokens prompt = random_tokens(70, 1);
  GenerationRequest first = turn_of(prompt, 50, 60, /*keeps_end=*/true);
  const Tokens drawn = tokens_of(*fresh(first));
  first.stop.tokens = {drawn.at(3)};
  const auto at = std::ranges::find(drawn, drawn[3]) - drawn.begin();
  const auto got = core.generate(first);
  CHECK(got->recorded == fresh(first)->recorded);
  REQUIRE(got->result().reason == FinishReason::kStopToken);
  CHECK(got->result().stop_token == drawn[3]);
  PrefixCache::Stats stats = core.prefixes.stats();
  CHECK(stats.turn_states == 1);
  CHECK(stats.call_states == 1);
  CHECK(stats.end_states == 1);
  CHECK(stats.chat_read_tokens == 70);

  const Tokens answered =
      prompt + Tokens(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  const auto first_tokens = [&](std::size_t count) {
    return Tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(count));
  };
  const std::map<std::int64_t, Tokens> continued = {
      {static_cast<std::int64_t>(answered.size()), answered},
      {60, first_tokens(60)},
      {50, first_tokens(50)}};
  for (const auto& [tokens, beginning] : continued) {
    CAPTURE(tokens);
    GenerationRequest next = turn_of(beginning + Tokens{49, 48, 47}, tokens + 1);
    next.sampling.repetition_penalty = 1.3f;
    next.turn.reset();
    const auto answer = core.generate(next);
    CHECK(answer->result().cached_tokens == tokens);
    CHECK(answer->recorded == fresh(next)->recorded);
  }
}

TEST_CASE("an answer that a limit ends, several samples and a stop text leave no state behind it") {
  const auto model = tiny_model(TinyModel::kBytes);
  Core core(model, without_threads(), kSessionOptions, kRoomy);
  GenerationRequest request = turn_of(random_tokens(40, 1), 30, 0, /*keeps_end=*/true);
  SECTION("a limit") {}
  SECTION("samples") {
    request.num_samples = 2;
    for (std::int32_t token = 0; token < 256; ++token) request.stop.tokens.push_back(token);
  }
  core.generate(request);
  CHECK(core.prefixes.stats().turn_states == 1);
  CHECK(core.prefixes.stats().end_states == 0);
}

TEST_CASE("over 50 turns each reads at most the last one, and four states are kept", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kSessionOptions, kRoomy);
  Tokens history;
  std::int64_t boundary = 0;
  std::uint64_t read = 0;
  for (std::uint32_t turn = 0; turn < 50; ++turn) {
    CAPTURE(turn);
    history = history + random_tokens(20, 100 + turn);
    const auto end = static_cast<std::int64_t>(history.size());
    const Tokens prompt = history + Tokens{1, 2, 3};
    const auto got = core.generate(turn_of(prompt, end, end + 2));
    CHECK(got->recorded == Core(model).generate(turn_of(prompt, end, end + 2))->recorded);
    CHECK(got->result().cached_tokens >= boundary);
    read += static_cast<std::uint64_t>(got->result().prompt_tokens);
    boundary = end;
    const PrefixCache::Stats stats = core.prefixes.stats();
    CHECK(stats.turn_states <= 3);
    CHECK(stats.turn_states + stats.call_states <= 4);
  }
  CHECK(read <= 50 * 23);
  const PrefixCache::Stats stats = core.prefixes.stats();
  CHECK(stats.chat_read_tokens == read);
  CHECK(stats.chat_rereads == 0);
  CHECK(stats.chat_common_not_cached == 0);
  CHECK(stats.chat_states_dropped > 90);

  SECTION("an edited question starts at the turn before") {
    Tokens edited(history.begin(), history.end() - 20);
    edited = edited + random_tokens(20, 999) + Tokens{1, 2, 3};
    const auto got = core.generate(turn_of(edited, boundary));
    CHECK(got->result().cached_tokens == boundary - 20);
  }
  SECTION("one that goes back farther is counted") {
    Tokens edited(history.begin(), history.begin() + 40);
    edited = edited + random_tokens(20, 999);
    const auto got = core.generate(turn_of(edited, 55));
    CHECK(got->result().cached_tokens == 0);
    CHECK(core.prefixes.stats().chat_rereads == 1);
    CHECK(core.prefixes.stats().chat_common_not_cached == 40);
  }
}

TEST_CASE("the state where two conversations part stays when either continues") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kSessionOptions, kRoomy);
  const Tokens shared = random_tokens(40, 1);
  core.generate(turn_of(shared + Tokens{1}, 40));
  std::array<Tokens, 2> branches = {shared, shared};
  for (std::uint32_t turn = 0; turn < 6; ++turn) {
    for (std::uint32_t branch = 0; branch < 2; ++branch) {
      Tokens& history = branches.at(branch);
      history = history + random_tokens(10, 10 * branch + turn + 2);
      const auto end = static_cast<std::int64_t>(history.size());
      const auto got = core.generate(turn_of(history + Tokens{1}, end));
      CHECK(got->result().cached_tokens == end - 10);
    }
  }
  CHECK(core.generate(turn_of(shared + Tokens{9, 9, 9}, 42))->result().cached_tokens == 40);
}

TEST_CASE("an answer that the next turn leaves out leaves no state") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kSessionOptions, kRoomy);
  const Tokens prompt = random_tokens(40, 1);
  GenerationRequest request = turn_of(prompt, 39, 0, /*keeps_end=*/true);
  for (std::int32_t token = 0; token < 50; ++token) request.stop.tokens.push_back(token);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    request.seed = seed;
    core.generate(request);
  }
  CHECK(core.prefixes.stats().end_states > 1);
  core.generate(turn_of(prompt + Tokens{7, 7, 7, 7}, 43));
  const PrefixCache::Stats stats = core.prefixes.stats();
  CHECK(stats.end_states == 0);
  CHECK(stats.turn_states == 2);
}

// A tree with the states of one conversation of three turns, and of another of one.
struct Conversations {
  PrefixTree tree;
  PrefixTree::Gone gone;
  PrefixTree::Node& put(const Tokens& tokens, KeptFor kept_for) {
    PrefixTree::Node& root = tree.root({}, nullptr, gone);
    PrefixTree::Node& node = tree.node_behind(tokens, tree.walk(root, tokens));
    auto state = std::make_shared<SavedState>();
    state->bytes.resize(1000);
    tree.put_state(node, std::move(state), kept_for);
    if (kept_for == KeptFor::kTurn) {
      node.is_turn = true;
      tree.prune_conversation(node, gone);
    }
    return node;
  }
};

TEST_CASE("where memory is short older turns go first, then calls, ends, and last turns by worth") {
  Conversations all;
  const Tokens path = random_tokens(100, 1);
  const auto first = [&](std::ptrdiff_t count) {
    return Tokens(path.begin(), path.begin() + count);
  };
  const Tokens other = random_tokens(30, 2);
  PrefixTree::Node* const lone = &all.put(other, KeptFor::kTurn);
  PrefixTree::Node* const older = &all.put(first(50), KeptFor::kTurn);
  PrefixTree::Node* const last = &all.put(first(90), KeptFor::kTurn);
  PrefixTree::Node* const end = &all.put(first(99), KeptFor::kEnd);
  PrefixTree::Node* const call = &all.put(first(95), KeptFor::kCall);
  for (PrefixTree::Node* const expected : {older, call, end, lone, last}) {
    REQUIRE(all.tree.least_worth() == expected);
    all.tree.evict_state(*expected, all.gone);
  }
  CHECK(all.tree.least_worth() == nullptr);
}

}  // namespace
}  // namespace lintel::testing
