// SPDX-License-Identifier: Apache-2.0
// Softmax attention against a twin that does what the formula says, in double precision.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "model/config/attention_spec.h"
#include "tests/model/attention/twin.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::full_pass;
using testing::kTwinTolerance;
using testing::largest_difference;
using testing::normal_inputs;
using testing::Rows;
using testing::steps;
using testing::TwinInputs;

Rows softmax_twin(const TwinInputs& in) {
  return testing::softmax_rows(in, [](int, std::size_t, std::size_t) { return true; });
}

TEST_CASE("softmax attention follows its formula, at every length", "[rows]") {
  std::mt19937 generator(1);
  struct Shape {
    int n_heads;
    int d_head;
    std::size_t n;
    double scale;
  };
  for (const auto& [n_heads, d_head, n, scale] :
       {Shape{2, 8, 200, 0.0}, Shape{1, 1, 70, 0.0}, Shape{3, 5, 64, 0.7}, Shape{1, 33, 129, 0.0},
        Shape{2, 32, 65, 0.3}, Shape{1, 80, 66, 0.0}, Shape{1, 64, 63, 0.0}}) {
    CAPTURE(n_heads, d_head, n, scale);
    const TwinInputs in = normal_inputs(
        attention_of(scale == 0.0 ? "softmax" : "softmax:scale=" + std::to_string(scale)), n_heads,
        d_head, n, generator);
    const Rows expected = softmax_twin(in);
    testing::for_each_instruction_set([&] {
      CHECK(largest_difference(steps(in, generator), expected) < kTwinTolerance);
      CHECK(largest_difference(full_pass(in), expected) < kTwinTolerance);
    });
  }
}

TEST_CASE("scores of thousands neither overflow nor vanish in softmax attention") {
  // Position s has the score 100 * (s mod 90), so that the largest changes and stays far away.
  constexpr std::size_t kLength = 300;
  TwinInputs in{attention_of("softmax:scale=100"), {.d_model = 4, .n_heads = 1, .d_head = 4}};
  for (int i = 0; i < 3; ++i) in.inputs.emplace_back(kLength, 4);
  for (std::size_t t = 0; t < kLength; ++t) {
    in.inputs[0].row(t)[0] = 1.0f;
    in.inputs[1].row(t)[0] = static_cast<float>(t % 90);
    for (float& x : in.inputs[2].row(t)) x = static_cast<float>(t);
  }
  std::mt19937 generator(2);
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), softmax_twin(in)) < kTwinTolerance); });
  for (float& x : in.inputs[1].values()) x -= 200.0f;  // all of them far below zero
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), softmax_twin(in)) < kTwinTolerance); });
}

TEST_CASE("softmax attention takes exactly the pages it needs") {
  std::mt19937 generator(3);
  const TwinInputs in = normal_inputs(attention_of("softmax"), 2, 8, 1000, generator);
  const auto backend = make_attention(in.params());
  const auto state = backend->new_state({});
  AttentionScratch scratch;
  Matrix out(1, 16);
  LayerState* const only = state.get();
  CHECK(state->bytes() == 0);
  for (std::size_t t = 0; t < 1000; ++t) {
    backend->step({&only, 1}, in.rows(t, 1), out.view(), scratch);
    const auto tokens = static_cast<std::int64_t>(t) + 1;
    REQUIRE(state->bytes() == backend->state_bytes(tokens));
    const std::size_t pages = (t + 64) / 64;
    REQUIRE(state->bytes() / (64 * 16 * 2 * sizeof(float)) == pages);
  }
  state->reset();
  CHECK(state->bytes() == 0);
}

}  // namespace
}  // namespace lintel
