// SPDX-License-Identifier: Apache-2.0
#include "server/core/token_record.h"

#include <cmath>
#include <limits>
#include <string>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("token record: tokens are read back with those in their place") {
  TokenRecord record;
  CHECK(record.empty());
  record.add(7, "seven", -1.0f);
  record.add_top(7, "seven", -1.0f);
  record.add_top(8, "eight", -2.0f);
  record.add(9, "", std::numeric_limits<float>::quiet_NaN());
  record.add(8, "eight", -3.0f);
  REQUIRE(record.size() == 3);
  TokenRecord::Cursor at;
  CHECK(record.token_at(at).id == 7);
  REQUIRE(record.tops_at(at) == 2);
  CHECK(record.top_at(at, 1).id == 8);
  CHECK(record.top_at(at, 1).log2_prob == -2.0f);
  record.advance(at);
  CHECK(record.token_at(at).id == 9);
  CHECK(std::isnan(record.token_at(at).log2_prob));
  CHECK(record.tops_at(at) == 0);
  record.advance(at);
  CHECK(record.token_at(at).log2_prob == -3.0f);
  record.advance(at);
  CHECK(at.token == record.size());
  CHECK(record.text_of(7) == "seven");
  CHECK(record.text_of(9).empty());
}

TEST_CASE("token record: a token has more than 255 of the most likely ones") {
  constexpr std::size_t kTops = 4096;  // the most of --max-top-log2-probs
  TokenRecord record;
  for (std::int32_t token = 0; token < 2; ++token) {
    record.add(token, "", -1.0f);
    for (std::size_t k = 0; k < kTops; ++k) {
      record.add_top(static_cast<std::int32_t>(k), "", -2.0f);
    }
  }
  TokenRecord::Cursor at;
  CHECK(record.tops_at(at) == kTops);
  CHECK(record.top_at(at, kTops - 1).id == static_cast<std::int32_t>(kTops) - 1);
  record.advance(at);
  CHECK(record.token_at(at).id == 1);
  CHECK(record.tops_at(at) == kTops);
}

TEST_CASE("token record: it takes no more than is admitted for it") {
  constexpr std::size_t kVocabulary = 1024, kTops = 20;
  TokenRecord record;
  for (std::size_t i = 0; i < 5000; ++i) {
    const auto id = static_cast<std::int32_t>(i % kVocabulary);
    record.add(id, "token " + std::to_string(id), -1.0f);
    for (std::size_t k = 0; k < kTops; ++k) {
      const auto top = static_cast<std::int32_t>((i + k) % kVocabulary);
      record.add_top(top, "token " + std::to_string(top), -2.0f);
    }
    REQUIRE(record.bytes() <= TokenRecord::most_bytes(i + 1, kTops, kVocabulary));
  }
  // Texts are kept once.
  CHECK(record.bytes() < 5000 * (2 + 8 * (1 + kTops)) + kVocabulary * 100);
}

}  // namespace
}  // namespace lintel::testing
