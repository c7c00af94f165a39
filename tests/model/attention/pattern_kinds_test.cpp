// SPDX-License-Identifier: Apache-2.0
// What sparse_transformer, longformer and bigbird refuse, and the table of random blocks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;

std::string refusal(const std::string& config,
                    const LayerDims& dims = {.n_heads = 4, .d_head = 8}) {
  try {
    check_attention(parse_attention_config(config, "f"), dims, "f", "attention.");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("keys of sparse_transformer that do not go together are refused") {
  const auto sparse = [](const std::string& keys) {
    return refusal(R"({"type": "sparse_transformer", )" + keys + "}");
  };
  CHECK(sparse(R"("pattern": "fixed", "stride": 12, "columns": 3, "column_groups": 4)") ==
        "accepted");
  CHECK_THAT(sparse(R"("pattern": "fixed", "stride": 12, "columns": 3, "column_groups": 5)"),
             Contains("\"attention.columns\": found 3") && Contains("15"));
  CHECK_THAT(sparse(R"("pattern": "fixed", "stride": 12, "columns": 13)"),
             Contains("\"attention.columns\": found 13"));
  CHECK(sparse(R"("pattern": "strided", "stride": 12, "columns": 1)") == "accepted");
  CHECK_THAT(sparse(R"("pattern": "strided", "stride": 12, "columns": 2)"),
             Contains("\"attention.columns\": found 2") && Contains("fixed"));
  CHECK_THAT(sparse(R"("pattern": "strided", "stride": 12, "column_groups": 2)"),
             Contains("\"attention.column_groups\": found 2"));
}

TEST_CASE("longformer has one dilation, or one for each head, and a window that can be counted") {
  const auto longformer = [](const std::string& keys) {
    return refusal(R"({"type": "longformer", )" + keys + "}");
  };
  CHECK(longformer(R"("window": 5, "dilation": [1, 2, 3, 4])") == "accepted");
  CHECK(longformer(R"("window": 5, "dilation": [3])") == "accepted");
  CHECK_THAT(longformer(R"("window": 5, "dilation": [1, 2, 3])"),
             Contains("\"attention.dilation\": found a list of 3") && Contains("n_heads = 4"));
  CHECK(longformer(R"("window": 1048576, "dilation": 2047)") == "accepted");
  CHECK_THAT(longformer(R"("window": 1048576, "dilation": 65536)"),
             Contains("\"attention.window\": found 1048576"));
}

TEST_CASE("bigbird names random blocks only for positions that end, and no more than fit") {
  const std::string three = R"({"type": "bigbird", "block_size": 1, "random_blocks": 3})";
  CHECK_THAT(refusal(three),
             Contains("\"attention.random_blocks\": found 3") && Contains("max_length"));
  CHECK(refusal(three, {.n_heads = 4, .d_head = 8, .max_length = 100}) == "accepted");
  CHECK_THAT(refusal(three, {.n_heads = 1024, .d_head = 8, .max_length = INT32_MAX}),
             Contains("\"attention.random_blocks\": found 3, expected at most 0"));
  CHECK(refusal(R"({"type": "bigbird", "block_size": 1})") == "accepted");
}

OwnTensor random_blocks(const std::string& keys, std::int64_t max_length) {
  const AttentionConfig config = attention_of("bigbird:" + keys);
  return own_tensors(config, {.n_heads = 3, .d_head = 8, .max_length = max_length}).front();
}

TEST_CASE("random blocks are whole numbers from -1 to the own block, and nothing else") {
  const OwnTensor tensor = random_blocks("block_size=10,random_blocks=2", 95);
  REQUIRE(tensor.name == "random_blocks");
  REQUIRE(tensor.shape == std::vector<std::int64_t>{3, 10, 2});
  CHECK_FALSE(tensor.is_learned);
  std::vector<float> values(3 * 10 * 2, -1.0f);
  const std::size_t at = (2 * 10 + 4) * 2 + 1;  // [2, 4, 1]
  for (const float block : {-1.0f, 0.0f, -0.0f, 3.0f, 4.0f}) {
    values[at] = block;
    CHECK(tensor.refuse(values, tensor).empty());
  }
  for (const float block : {5.0f, -2.0f, 0.5f, 1e9f, -0.5f}) {
    values[at] = block;
    CHECK_THAT(tensor.refuse(values, tensor), Contains("at [2, 4, 1]") && Contains("-1 to 4"));
  }
  values[at] = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(tensor.refuse(values, tensor).empty());
}

TEST_CASE("drawn blocks are different ones that are seen in no other way, all of them in the end") {
  constexpr std::size_t kRandom = 4;
  const OwnTensor tensor =
      random_blocks("block_size=5,window_blocks=3,global_blocks=2,random_blocks=4", 200);
  REQUIRE(tensor.shape == std::vector<std::int64_t>{3, 40, kRandom});
  const auto draw = [&](std::uint64_t seed, int layer) {
    std::vector<float> values(3 * 40 * kRandom);
    draw_tensor(values, tensor, seed, layer, 0);
    return values;
  };
  std::set<float> seen_from_last;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> values = draw(seed, 1);
    REQUIRE(tensor.refuse(values, tensor).empty());
    for (std::size_t row = 0; row < 3 * 40; ++row) {
      const std::span<const float> named(&values[row * kRandom], kRandom);
      const std::size_t own = row % 40;
      // Blocks 2 .. own - 3.
      const std::size_t candidates = own < 5 ? 0 : own - 4;
      const auto none = static_cast<std::size_t>(std::ranges::count(named, -1.0f));
      CAPTURE(seed, own);
      REQUIRE(none == kRandom - std::min(candidates, kRandom));
      const std::set<float> blocks(named.begin(), named.end() - static_cast<std::ptrdiff_t>(none));
      REQUIRE(blocks.size() == kRandom - none);
      for (const float block : blocks) {
        REQUIRE((block >= 2.0f && block <= static_cast<float>(own) - 3.0f));
        if (own == 39) seen_from_last.insert(block);
      }
    }
  }
  CHECK(seen_from_last.size() == 35);
  CHECK(draw(7, 2) == draw(7, 2));
  CHECK(draw(7, 2) != draw(8, 2));
  CHECK(draw(7, 2) != draw(7, 3));
}

}  // namespace
}  // namespace lintel
