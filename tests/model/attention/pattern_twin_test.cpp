// SPDX-License-Identifier: Apache-2.0
// Softmax over patterns of positions against a twin that asks of every position whether it is seen,
// in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/config/attention_spec.h"
#include "tests/model/attention/pattern_cases.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::full_pass;
using testing::head_of;
using testing::kTwinTolerance;
using testing::largest_difference;
using testing::PatternCase;
using testing::Rows;
using testing::sees;
using testing::steps;
using testing::TwinInputs;

constexpr unsigned kSeed = 20;

Rows pattern_twin(const TwinInputs& in) {
  return testing::softmax_rows(in, [&in](int h, std::size_t t, std::size_t s) {
    return sees(in, h, static_cast<std::int64_t>(t), static_cast<std::int64_t>(s));
  });
}

bool bits_agree(const Matrix& a, const Matrix& b) {
  return std::memcmp(a.values().data(), b.values().data(), a.values().size_bytes()) == 0;
}

TEST_CASE("softmax over a pattern follows its definition, for every setting", "[rows]") {
  std::mt19937 generator(kSeed);
  for (const PatternCase& which : testing::pattern_cases(generator)) {
    CAPTURE(kSeed, which.config, which.n_heads, which.d_head, which.n, which.max_length);
    const TwinInputs in = testing::pattern_inputs(which, generator);
    const Rows expected = pattern_twin(in);
    testing::for_each_instruction_set([&] {
      const Matrix stepped = steps(in, generator);
      CHECK(largest_difference(stepped, expected) < kTwinTolerance);
      CHECK(bits_agree(full_pass(in), stepped));
    });
  }
}

TEST_CASE("a position changes the heads that see it, and not a bit of any other", "[rows]") {
  std::mt19937 generator(kSeed + 1);
  for (const PatternCase& which : testing::pattern_cases(generator)) {
    TwinInputs in = testing::pattern_inputs(which, generator);
    const Matrix before = full_pass(in);
    const std::size_t changed = generator() % which.n;
    CAPTURE(kSeed, which.config, which.n_heads, which.d_head, which.n, changed);
    for (float& x : in.inputs[1].row(changed)) x = 0.5f - x;
    for (float& x : in.inputs[2].row(changed)) x = 100.0f - x;
    const Matrix after = full_pass(in);
    for (std::size_t t = 0; t < which.n; ++t) {
      for (int h = 0; h < which.n_heads; ++h) {
        const bool same = std::ranges::equal(head_of(before, t, h, which.d_head),
                                             head_of(after, t, h, which.d_head));
        CAPTURE(t, h);
        REQUIRE(same !=
                sees(in, h, static_cast<std::int64_t>(t), static_cast<std::int64_t>(changed)));
      }
    }
  }
}

TEST_CASE("scores of thousands neither overflow nor vanish in softmax over a pattern") {
  constexpr std::size_t kLength = 300;
  const PatternCase which{R"({"type": "longformer", "window": 150, "scale": 100})", 1, 4, kLength};
  std::mt19937 generator(kSeed + 2);
  TwinInputs in = testing::pattern_inputs(which, generator);
  for (std::size_t t = 0; t < kLength; ++t) {
    std::ranges::fill(in.inputs[0].row(t), 0.0f);
    in.inputs[0].row(t)[0] = 1.0f;
    in.inputs[1].row(t)[0] = static_cast<float>(t % 90);
    std::ranges::fill(in.inputs[2].row(t), static_cast<float>(t));
  }
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), pattern_twin(in)) < kTwinTolerance); });
  for (float& x : in.inputs[1].values()) x -= 200.0f;  // all of them far below zero
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), pattern_twin(in)) < kTwinTolerance); });
}

}  // namespace
}  // namespace lintel
