// SPDX-License-Identifier: Apache-2.0
// The tree of prompts against a naive set of all their beginnings.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "server/engine/prefix_cache.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Tokens = std::vector<std::int32_t>;

std::shared_ptr<const SavedState> state_of_bytes(std::size_t bytes) {
  auto state = std::make_shared<SavedState>();
  state->bytes.resize(bytes);
  return state;
}

Tokens first(const Tokens& tokens, std::size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

// A PrefixTree in its simplest form, without a thought for time or memory.
struct NaiveTree {
  std::set<Tokens> beginnings;  // of every prompt, the whole ones too
  std::set<Tokens> states;

  void add(const Tokens& prompt) {
    for (std::size_t n = 0; n <= prompt.size(); ++n) beginnings.insert(first(prompt, n));
  }
  std::size_t matched(const Tokens& prompt) const {
    std::size_t n = 0;
    while (n < prompt.size() && beginnings.contains(first(prompt, n + 1))) ++n;
    return n;
  }
  std::size_t nearest(const Tokens& prompt) const {
    std::size_t best = 0;
    for (std::size_t n = 1; n <= prompt.size(); ++n) {
      if (states.contains(first(prompt, n))) best = n;
    }
    return best;
  }
};

// The tokens on the way to a node.
Tokens path_of(const PrefixTree::Node& node) {
  Tokens tokens;
  for (const PrefixTree::Node* at = &node; at->parent != nullptr; at = at->parent) {
    tokens.insert(tokens.begin(), at->edge.begin(), at->edge.end());
  }
  return tokens;
}

TEST_CASE("a tree of prompts finds what a naive set of their beginnings finds") {
  const auto seed = GENERATE(range(1u, 9u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const PrefixPartKey key{.model = nullptr, .adapter = nullptr, .owner = "a"};
  PrefixTree tree;
  NaiveTree naive;
  const auto random_prompt = [&] {
    Tokens prompt(1 + random() % 12);
    for (auto& token : prompt) token = static_cast<std::int32_t>(random() % 3);
    return prompt;
  };
  for (int i = 0; i < 3000; ++i) {
    PrefixTree::Gone gone;
    const Tokens prompt = random_prompt();
    PrefixTree::Node& root = tree.root(key, nullptr, gone);
    const PrefixTree::Walk walk = tree.walk(root, prompt);
    REQUIRE(static_cast<std::size_t>(walk.matched) == naive.matched(prompt));
    const std::size_t nearest = naive.nearest(prompt);
    REQUIRE((walk.nearest == nullptr ? 0 : static_cast<std::size_t>(walk.nearest->end)) == nearest);
    if (walk.nearest != nullptr) REQUIRE(path_of(*walk.nearest) == first(prompt, nearest));
    switch (random() % 8) {
      case 0: {
        PrefixTree::Node* const leaf = tree.longest_unused();
        if (leaf->parent == nullptr) break;
        const Tokens path = path_of(*leaf);
        naive.states.erase(path);
        // Beginnings up to the parent's end are those of others, too.
        for (std::size_t n = path.size(); n > static_cast<std::size_t>(leaf->parent->end); --n) {
          naive.beginnings.erase(first(path, n));
        }
        tree.take_leaf(*leaf, gone);
        break;
      }
      case 1:
        if (PrefixTree::Node* const least = tree.least_worth()) {
          naive.states.erase(path_of(*least));
          tree.evict_state(*least, gone);
        }
        break;
      case 2:
      case 3: {
        PrefixTree::Node& node = tree.node_behind(prompt, walk);
        REQUIRE(path_of(node) == prompt);
        naive.add(prompt);
        if (!node.has_state) tree.put_state(node, state_of_bytes(1 + random() % 100));
        naive.states.insert(prompt);
        break;
      }
      default:
        if (walk.matched < static_cast<std::int64_t>(prompt.size())) {
          tree.node_behind(prompt, walk);
        }
        naive.add(prompt);
    }
  }
  REQUIRE(naive.states.size() > 10);
  PrefixTree::Gone gone;
  tree.take_parts([](const PrefixTree::Part&) { return true; }, gone);
  CHECK(tree.state_bytes() == 0);
  CHECK(tree.path_bytes() == 0);
  CHECK(tree.longest_unused() == nullptr);
}

TEST_CASE("of two states the one goes that saves less for its bytes, unless it was used since") {
  const PrefixPartKey key;
  PrefixTree tree;
  PrefixTree::Gone gone;
  const auto put = [&](const Tokens& prompt, std::size_t bytes) {
    PrefixTree::Node& root = tree.root(key, nullptr, gone);
    PrefixTree::Node& node = tree.node_behind(prompt, tree.walk(root, prompt));
    tree.put_state(node, state_of_bytes(bytes));
    return &node;
  };
  PrefixTree::Node* const small = put(Tokens(40, 1), 100);
  PrefixTree::Node* const large = put(Tokens(40, 2), 200);
  PrefixTree::Node* const behind = put(Tokens(50, 1), 100);  // saves ten tokens more than `small`
  CHECK(tree.least_worth() == behind);
  tree.evict_state(*behind, gone);
  CHECK(tree.least_worth() == large);
  tree.evict_state(*large, gone);
  // From now on a use is worth more than one before.
  PrefixTree::Node* const late = put(Tokens(60, 3), 200);
  CHECK(tree.least_worth() == small);
  tree.note_use(*small);
  CHECK(tree.least_worth() == late);
}

TEST_CASE("blocks that several states share count once, as long as one of them is there") {
  constexpr std::size_t kBlock = 4096;
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < 6; ++i) blocks.emplace_back(kBlock);
  const auto state_of = [&](std::size_t first, std::size_t count) {
    auto state = std::make_shared<SavedState>();
    state->bytes.resize(10);
    for (std::size_t i = first; i < first + count; ++i) state->blocks.push_back(blocks[i]);
    return state;
  };
  PrefixTree tree;
  PrefixTree::Gone gone;
  const auto put = [&](std::int32_t token, std::shared_ptr<const SavedState> state) {
    const Tokens prompt(40, token);
    PrefixTree::Node& root = tree.root({}, nullptr, gone);
    PrefixTree::Node& node = tree.node_behind(prompt, tree.walk(root, prompt));
    const std::size_t before = tree.state_bytes();
    const std::size_t added = tree.bytes_added_by(*state);
    tree.put_state(node, std::move(state));
    CHECK(tree.state_bytes() == before + added);
    return &node;
  };
  const auto whole_blocks = [&] { return tree.state_bytes() / kBlock; };
  PrefixTree::Node* const shorter = put(1, state_of(0, 3));
  CHECK(whole_blocks() == 3);
  PrefixTree::Node* const longer = put(2, state_of(0, 5));
  CHECK(whole_blocks() == 5);
  PrefixTree::Node* const other = put(3, state_of(4, 2));
  CHECK(whole_blocks() == 6);
  tree.evict_state(*shorter, gone);
  CHECK(whole_blocks() == 6);
  tree.evict_state(*longer, gone);
  CHECK(whole_blocks() == 2);
  tree.evict_state(*other, gone);
  CHECK(tree.state_bytes() == 0);
  gone.states.clear();
  for (const SharedBlock& block : blocks) CHECK_FALSE(block.is_shared());
}

TEST_CASE("an adapter at the address of one that is gone finds nothing of it") {
  PrefixTree tree;
  PrefixTree::Gone gone;
  const Tokens prompt(40, 1);
  auto adapter = std::make_shared<const ServedAdapter>();
  const PrefixPartKey key{.model = nullptr, .adapter = adapter.get(), .owner = {}};
  PrefixTree::Node& old = tree.root(key, adapter, gone);
  tree.put_state(tree.node_behind(prompt, tree.walk(old, prompt)), state_of_bytes(10));
  CHECK(tree.walk(tree.root(key, adapter, gone), prompt).nearest != nullptr);
  const auto other = std::make_shared<const ServedAdapter>();  // as if its address were that one's
  CHECK(tree.walk(tree.root(key, other, gone), prompt).nearest == nullptr);
  CHECK(tree.state_bytes() == 0);
}

}  // namespace
}  // namespace lintel::testing
