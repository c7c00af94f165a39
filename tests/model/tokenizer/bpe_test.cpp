// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding against its definition, for short pieces and long ones; the tables below it.
#include "model/tokenizer/bpe.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <string>

#include "model/tokenizer/world.h"

namespace lintel {
namespace {

struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t joined;
};

// The definition: while there is a pair, the one of lowest rank, the leftmost of equal ones.
std::vector<std::int32_t> by_definition(std::vector<std::int32_t> tokens,
                                        const std::vector<Merge>& merges) {
  for (;;) {
    std::size_t best = merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left != tokens[i] || merges[rank].right != tokens[i + 1]) continue;
        best = rank;
        at = i;
      }
    }
    if (best == merges.size()) return tokens;
    tokens[at] = merges[best].joined;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

}  // namespace

TEST_CASE("BPE: short and long pieces are joined as the definition says") {
  std::mt19937_64 random(20260812);
  for (int round = 0; round < 60; ++round) {
    std::vector<Merge> merges;
    std::map<std::pair<std::int32_t, std::int32_t>, bool> pairs;
    const int letters = 2 + static_cast<int>(random() % 3);
    while (merges.size() < 40) {
      const auto ids = static_cast<std::size_t>(letters) + merges.size();
      const auto left = static_cast<std::int32_t>(random() % ids);
      const auto right = static_cast<std::int32_t>(random() % ids);
      if (!pairs.emplace(std::pair(left, right), true).second) continue;
      merges.push_back({left, right, static_cast<std::int32_t>(ids)});
    }
    BpeMerges bpe(merges.size());
    for (const Merge& merge : merges) REQUIRE(bpe.add(merge.left, merge.right, merge.joined));
    CHECK_FALSE(bpe.add(merges[0].left, merges[0].right, 1));
    for (const std::size_t length : {0, 1, 2, 3, 7, 47, 48, 49, 50, 300}) {
      std::vector<std::int32_t> tokens(length);
      for (std::int32_t& token : tokens) {
        token = static_cast<std::int32_t>(random() % static_cast<unsigned>(letters));
      }
      std::vector<std::int32_t> ids{-1};
      bpe.encode(tokens, ids);
      REQUIRE(ids.front() == -1);
      ids.erase(ids.begin());
      REQUIRE(ids == by_definition(tokens, merges));
    }
  }
}

TEST_CASE("text index: what was inserted is found, a second time refused") {
  TextIndex index(3000);
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i)
    texts.push_back(std::string(static_cast<std::size_t>(i % 40), 'x') + std::to_string(i));
  texts[7] = "";
  for (int i = 0; i < 3000; ++i) CHECK_FALSE(index.insert(texts[static_cast<std::size_t>(i)], i));
  for (int i = 0; i < 3000; ++i) {
    CHECK(index.find(texts[static_cast<std::size_t>(i)]) == i);
    CHECK(index.insert(std::string(texts[static_cast<std::size_t>(i)]), 5) == i);
  }
  CHECK_FALSE(index.find("no"));
  CHECK_FALSE(index.find(std::string("x1\0", 3)));
}

TEST_CASE("byte trie: all beginnings of a text are found, shortest first") {
  const ByteTrie trie(
      {{"a", 1}, {"ab", 2}, {"abcd", 3}, {"\xff", 4}, {std::string_view("\0b", 2), 5}});
  const auto found = [&](std::string_view text) {
    std::vector<std::pair<std::int32_t, std::size_t>> ids;
    trie.each_prefix(text, [&](std::int32_t id, std::size_t bytes) { ids.push_back({id, bytes}); });
    return ids;
  };
  using Found = std::vector<std::pair<std::int32_t, std::size_t>>;
  CHECK(found("abcde") == Found{{1, 1}, {2, 2}, {3, 4}});
  CHECK(found("abc") == Found{{1, 1}, {2, 2}});
  CHECK(found("\xff") == Found{{4, 1}});
  CHECK(found(std::string_view("\0bx", 3)) == Found{{5, 2}});
  CHECK(found("b").empty());
  CHECK(found("").empty());
  CHECK(ByteTrie().empty());
}

}  // namespace lintel
