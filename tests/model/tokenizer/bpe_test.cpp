// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding against its definition, for short pieces and long ones; the tables below it.
#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/world.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t joined;
};

// Ranks by pair, for the definition.
class Ranks {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};
  explicit Ranks(const std::vector<Merge>& merges) {
    for (std::size_t i = 0; i < merges.size(); ++i) {
      ranks_.emplace(std::pair(merges[i].left, merges[i].right), i);
    }
  }
  std::size_t of(const std::vector<std::int32_t>& tokens, std::size_t at) const {
    if (at + 1 >= tokens.size()) return kNone;
    const auto found = ranks_.find({tokens[at], tokens[at + 1]});
    return found == ranks_.end() ? kNone : found->second;
  }

 private:
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks_;
};

// The definition: while there is a pair, the one of lowest rank, the leftmost of equal ones.
std::vector<std::int32_t> by_definition(std::vector<std::int32_t> tokens,
                                        const std::vector<Merge>& merges) {
  const Ranks table(merges);
  std::vector<std::size_t> ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) ranks.push_back(table.of(tokens, i));
  while (!tokens.empty()) {
    const auto best = std::ranges::min_element(ranks);
    if (*best == Ranks::kNone) break;
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    tokens[at] = merges[*best].joined;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(best);
    ranks[at] = table.of(tokens, at);
    if (at > 0) ranks[at - 1] = table.of(tokens, at - 1);
  }
  return tokens;
}

std::vector<std::int32_t> encoded(const std::vector<std::int32_t>& tokens,
                                  const std::vector<Merge>& merges) {
  BpeMerges bpe(merges.size());
  for (const Merge& merge : merges) REQUIRE(bpe.add(merge.left, merge.right, merge.joined));
  CHECK_FALSE(bpe.add(merges[0].left, merges[0].right, 1));
  std::vector<std::int32_t> ids{-1};
  bpe.encode(tokens, ids);
  REQUIRE(ids.front() == -1);
  ids.erase(ids.begin());
  return ids;
}

// Merges of tokens made of `letters` letters and of what these merges make.
std::vector<Merge> random_merges(std::mt19937_64& random, std::size_t letters, std::size_t count) {
  std::vector<Merge> merges;
  std::set<std::pair<std::int32_t, std::int32_t>> pairs;
  while (merges.size() < count) {
    const std::size_t ids = letters + merges.size();
    const auto left = static_cast<std::int32_t>(random() % ids);
    const auto right = static_cast<std::int32_t>(random() % ids);
    if (!pairs.emplace(left, right).second) continue;
    merges.push_back({left, right, static_cast<std::int32_t>(ids)});
  }
  return merges;
}

}  // namespace

TEST_CASE("BPE: short and long pieces are joined as the definition says") {
  std::mt19937_64 random(20260812);
  for (int round = 0; round < 60; ++round) {
    const std::size_t letters = 2 + random() % 3;
    const std::vector<Merge> merges = random_merges(random, letters, 40);
    for (const std::size_t length : {0, 1, 2, 3, 7, 47, 48, 49, 50, 300, 1024, 1025, 3000}) {
      if (length > 1000 && round % 6 != 0) continue;
      std::vector<std::int32_t> tokens(length);
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % letters);
      INFO(round << ", " << length);
      REQUIRE(encoded(tokens, merges) == by_definition(tokens, merges));
    }
  }
}

// The last two letters of ascending runs are joined first, then those before them: the last letter
// decides whether the first one is joined with the second.
TEST_CASE("BPE: what lies far behind a token decides how it is joined") {
  constexpr std::int32_t kLetters = 2600;
  std::vector<Merge> merges;
  for (std::int32_t i = kLetters - 2; i >= 0; --i) merges.push_back({i, i + 1, kLetters + i});
  for (const std::int32_t most : {50, 63, 64, 65, 200, 1100, 2599}) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t run = most; run > most - 5 && tokens.size() < 8000; --run) {
      for (std::int32_t i = 0; i <= run; ++i) tokens.push_back(i);
    }
    INFO(most);
    const bool is_equal = encoded(tokens, merges) == by_definition(tokens, merges);
    REQUIRE(is_equal);
  }
}

TEST_CASE("BPE: a token is longer than any window") {
  std::vector<Merge> merges;
  for (std::int32_t i = 0; i < 14; ++i) merges.push_back({i, i, i + 1});
  for (const std::size_t length : {1024, 16384, 20000, 40001}) {
    const std::vector<std::int32_t> tokens(length, 0);
    std::vector<std::int32_t> expected;
    std::size_t rest = length;
    for (std::int32_t i = 14; i >= 0; --i) {
      for (; rest >= std::size_t{1} << i; rest -= std::size_t{1} << i) expected.push_back(i);
    }
    INFO(length);
    REQUIRE(encoded(tokens, merges) == expected);
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
