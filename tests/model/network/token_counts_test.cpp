// SPDX-License-Identifier: Apache-2.0
#include "model/token_counts.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "model/core/errors.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

constexpr std::size_t kLarge = 20'000;  // a vocabulary of which few tokens occur

std::vector<std::byte> saved(const TokenCounts& counts) {
  std::vector<std::byte> bytes;
  StateByteWriter writer(bytes);
  counts.save(writer);
  return bytes;
}

TokenCounts loaded(std::uint32_t header, std::vector<std::byte> bytes, std::int64_t most_tokens) {
  TokenCounts counts(kLarge);
  StateByteReader reader(bytes);
  counts.load(header, most_tokens, reader);
  return counts;
}

TEST_CASE("counts of tokens are those of a list, in any order and number") {
  const std::size_t vocab_size = GENERATE(1, 300, TokenCounts::kMostDense + 1, kLarge, 65'536);
  CAPTURE(vocab_size);
  TokenCounts counts(vocab_size);
  std::vector<std::uint32_t> expected(vocab_size);
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 30'000; ++i) {
    // Half of them near one another, and now and then one leaves.
    const std::size_t range = i % 2 == 0 ? vocab_size : std::min<std::size_t>(vocab_size, 200);
    const auto token = static_cast<std::int32_t>(random() % range);
    counts.add(token);
    ++expected[static_cast<std::size_t>(token)];
    tokens.push_back(token);
    if (i % 5 == 4) {
      const std::int32_t gone = tokens[random() % tokens.size()];
      if (expected[static_cast<std::size_t>(gone)] > 0) {
        counts.remove(gone);
        --expected[static_cast<std::size_t>(gone)];
      }
    }
    const auto fed = static_cast<std::int64_t>(tokens.size());
    REQUIRE(counts.bytes() <= TokenCounts::most_bytes(vocab_size, fed));
    if (fed == 1 || fed == 17 || fed % 7'000 == 0) {
      REQUIRE(counts.all() == expected);
      TokenCounts copy(vocab_size);
      copy = counts;
      REQUIRE(copy == counts);
    }
  }
  REQUIRE(counts.all() == expected);
  counts.clear();
  CHECK(counts == TokenCounts(vocab_size));
  CHECK(counts.bytes() == TokenCounts::most_bytes(vocab_size, 0));
}

TEST_CASE("counts of few tokens of a large vocabulary are few bytes, and never more than all") {
  TokenCounts counts(250'000);
  CHECK(counts.bytes() == 0);
  for (std::int32_t token = 0; token < 1000; ++token) counts.add(token * 249);
  CHECK(counts.bytes() <= 16'384);
  for (const std::size_t vocab_size :
       {std::size_t{10}, std::size_t{4097}, kLarge, std::size_t{65'536}, std::size_t{250'000}}) {
    const std::int64_t full = TokenCounts::tokens_until_full(vocab_size);
    const std::size_t most = vocab_size * sizeof(std::uint32_t);
    CHECK(TokenCounts::most_bytes(vocab_size, full) == most);
    CHECK(TokenCounts::most_bytes(vocab_size, INT64_MAX) == most);
    if (full > 0) CHECK(TokenCounts::most_bytes(vocab_size, full - 1) < most);
  }
}

TEST_CASE("saved counts are loaded, as pairs and in full, as older snapshots have them") {
  TokenCounts counts(kLarge);
  for (const std::int32_t token : {19'999, 5, 5, 0, 300, 5}) counts.add(token);
  CHECK(counts.header() == (std::uint32_t{1} << 31 | 4));
  const std::vector<std::byte> pairs = saved(counts);
  CHECK(pairs.size() == 4 * 8);
  CHECK(loaded(counts.header(), pairs, 6) == counts);
  std::vector<std::byte> full;
  StateByteWriter writer(full);
  writer.values(std::span<const std::uint32_t>(counts.all()));
  CHECK(loaded(kLarge, full, 6) == counts);
  CHECK(loaded(kLarge, full, 6).bytes() < 1000);
}

TEST_CASE("saved counts that cannot be are refused") {
  const auto refused = [](std::uint32_t header, const std::vector<std::uint32_t>& numbers,
                          std::int64_t most_tokens, const std::string& why) {
    std::vector<std::byte> bytes;
    StateByteWriter writer(bytes);
    writer.values(std::span<const std::uint32_t>(numbers));
    CHECK_THROWS_WITH(loaded(header, bytes, most_tokens), Catch::Contains(why));
  };
  constexpr std::uint32_t kPairs = std::uint32_t{1} << 31;
  refused(kLarge - 1, {}, 100, "found counts 19999, expected 20000 to 20000");
  refused(kPairs | 10'000, {}, 1'000'000, "counts of 10000 tokens");
  refused(kPairs | 3, {}, 2, "counts of 3 tokens");
  refused(kPairs | 2, {7, 1, 7, 1}, 10, "token 7");
  refused(kPairs | 2, {7, 1, 6, 1}, 10, "token 6");
  refused(kPairs | 1, {kLarge, 1}, 10, "token 20000");
  refused(kPairs | 1, {UINT32_MAX, 1}, 10, "token -1");
  refused(kPairs | 1, {7, 0}, 10, "count 0");
  refused(kPairs | 2, {7, 1}, 10, "");
  std::vector<std::uint32_t> full(kLarge, 1);
  refused(kLarge, full, 10, "more counts than tokens");
}

}  // namespace
}  // namespace lintel
