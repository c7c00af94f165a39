// SPDX-License-Identifier: Apache-2.0
// Grouped softmax attention over a KV cache: against the formula in double precision, and the
// promise of bits.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "model/core/step_thread_pool.h"
#include "tests/model/mixers/kv_layer.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::KvLayer;
using testing::same_floats;

const std::vector<GatedSoftmaxShape> kShapes = {
    {.heads = 4, .kv_heads = 2, .head_width = 16},
    {.heads = 8, .kv_heads = 2, .head_width = 64},
    {.heads = 6, .kv_heads = 1, .head_width = 40},
    {.heads = 3, .kv_heads = 3, .head_width = 7, .window = 20},
    {.heads = 4, .kv_heads = 2, .head_width = 8, .window = 1},
    {.heads = 5, .kv_heads = 1, .head_width = 33, .window = 47},
    {.heads = 4, .kv_heads = 1, .head_width = 24, .window = 100},
    {.heads = 2, .kv_heads = 2, .head_width = 12},
    {.heads = 2, .kv_heads = 1, .head_width = 1},
};

// The values of a head as a cache keeps them.
std::vector<double> kept(KvType type, const float* values, std::size_t count) {
  std::vector<double> all(values, values + count);
  double largest = 0.0;
  for (const double value : all) largest = std::max(largest, std::abs(value));
  for (double& value : all) {
    if (type == KvType::kInt8) value = std::round(value * 127.0 / largest) * largest / 127.0;
    if (type != KvType::kBf16) continue;
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);
    value = std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
  }
  return all;
}

// Every output [tokens, H D] by the formula.
std::vector<double> twin(const KvLayer& layer, const std::vector<float>& inputs) {
  const GatedSoftmaxShape& shape = layer.shape;
  const std::size_t width = shape.head_width;
  const std::size_t tokens = inputs.size() / layer.width();
  const auto head_of = [&](std::size_t t, std::size_t first, std::size_t head) {
    return kept(shape.kv_type, inputs.data() + t * layer.width() + first + head * width, width);
  };
  std::vector<double> out(tokens * shape.queries());
  for (std::size_t h = 0; h < shape.heads; ++h) {
    const std::size_t of_keys = h / (shape.heads / shape.kv_heads);
    std::vector<std::vector<double>> keys, values;
    for (std::size_t t = 0; t < tokens; ++t) {
      keys.push_back(head_of(t, shape.queries(), of_keys));
      values.push_back(head_of(t, shape.queries() + shape.keys(), of_keys));
      const float* const q = inputs.data() + t * layer.width() + h * width;
      std::vector<double> weights;
      const std::size_t least = t + 1 > shape.window ? t + 1 - shape.window : 0;
      for (std::size_t s = least; s <= t; ++s) {
        double score = 0.0;
        for (std::size_t c = 0; c < width; ++c) score += q[c] * keys[s][c];
        weights.push_back(score / std::sqrt(static_cast<double>(width)));
      }
      const double largest = *std::ranges::max_element(weights);
      double sum = 0.0;
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      for (std::size_t s = least; s <= t; ++s) {
        for (std::size_t c = 0; c < width; ++c) {
          out[t * shape.queries() + h * width + c] += weights[s - least] / sum * values[s][c];
        }
      }
    }
  }
  return out;
}

// The outputs in slices of so many tokens.
std::vector<float> in_slices(const KvLayer& layer, const std::vector<float>& inputs,
                             std::size_t slice) {
  const auto state = layer.new_state();
  const std::size_t tokens = inputs.size() / layer.width();
  std::vector<float> all;
  for (std::size_t t = 0; t < tokens; t += slice) {
    const std::size_t count = std::min(slice, tokens - t);
    const std::vector<float> out =
        layer.step({{state.get(), count}},
                   std::span(inputs).subspan(t * layer.width(), count * layer.width()));
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

KvLayer layer_of(GatedSoftmaxShape shape, KvType type) {
  shape.kv_type = type;
  return KvLayer(shape);
}

TEST_CASE("KV cache: attention follows its formula in each type", "[rows]") {
  const GatedSoftmaxShape shape = GENERATE(from_range(kShapes));
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(shape.heads, shape.kv_heads, shape.head_width, shape.window, to_string(type));
  const KvLayer layer = layer_of(shape, type);
  const std::vector<float> inputs = layer.inputs(0, 150);
  const std::vector<double> expected = twin(layer, inputs);
  testing::for_each_instruction_set([&] {
    for (const std::size_t slice : {1, 150}) {
      CAPTURE(slice);
      const std::vector<float> found = in_slices(layer, inputs, slice);
      REQUIRE(found.size() == expected.size());
      double largest = 0.0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        largest = std::max(largest, std::abs(found[i] - expected[i]));
      }
      CHECK(largest < 5e-6);
    }
  });
}

TEST_CASE("KV cache: slices and what shares the step leave the bits", "[rows]") {
  const GatedSoftmaxShape shape = GENERATE(from_range(kShapes));
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(shape.heads, shape.kv_heads, shape.head_width, shape.window, to_string(type));
  static std::uint64_t number = 0;
  if (!testing::is_drawn(number++, 2)) return;
  const KvLayer layer = layer_of(shape, type);
  constexpr std::size_t kTokens = 170;
  const std::vector<float> inputs = layer.inputs(1, kTokens);
  const std::vector<float> other_inputs = layer.inputs(2, kTokens);
  testing::for_each_instruction_set([&] {
    const std::vector<float> alone = in_slices(layer, inputs, 1);
    const std::vector<float> other_alone = in_slices(layer, other_inputs, 1);
    for (const std::size_t slice : {2, 3, 15, 16, 17, 64, 100, 170}) {
      CAPTURE(slice);
      CHECK(same_floats(in_slices(layer, inputs, slice), alone));
    }
    // Two sequences of different lengths in a step.
    const auto first = layer.new_state();
    const auto second = layer.new_state();
    std::mt19937 random(3);
    std::size_t s = 0;
    for (std::size_t t = 0; t < kTokens;) {
      const std::size_t count = std::min<std::size_t>(1 + random() % 21, kTokens - t);
      const std::size_t others = std::min<std::size_t>(random() % 9, kTokens - s);
      std::vector<float> rows(
          other_inputs.begin() + static_cast<std::ptrdiff_t>(s * layer.width()),
          other_inputs.begin() + static_cast<std::ptrdiff_t>((s + others) * layer.width()));
      rows.insert(rows.end(), inputs.begin() + static_cast<std::ptrdiff_t>(t * layer.width()),
                  inputs.begin() + static_cast<std::ptrdiff_t>((t + count) * layer.width()));
      const std::vector<float> out =
          layer.step({{second.get(), others}, {first.get(), count}}, rows);
      const std::size_t queries = shape.queries();
      REQUIRE(same_floats(std::span(out).first(others * queries),
                          std::span(other_alone).subspan(s * queries, others * queries)));
      REQUIRE(same_floats(std::span(out).subspan(others * queries),
                          std::span(alone).subspan(t * queries, count * queries)));
      t += count;
      s += others;
    }
  });
}

TEST_CASE("KV cache: drafts that are taken back leave neither bits nor bytes", "[rows]") {
  const GatedSoftmaxShape shape = GENERATE(from_range(kShapes));
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(shape.heads, shape.kv_heads, shape.head_width, shape.window, to_string(type));
  const KvLayer layer = layer_of(shape, type);
  constexpr std::size_t kTokens = 140;
  const std::vector<float> inputs = layer.inputs(4, kTokens);
  const std::vector<float> wrong = layer.inputs(5, 64);
  const std::vector<float> alone = in_slices(layer, inputs, 1);
  const std::size_t queries = shape.queries();
  const auto state = layer.new_state();
  const auto undisturbed = layer.new_state();
  const auto at = [&](std::size_t t, std::size_t count) {
    return std::span(inputs).subspan(t * layer.width(), count * layer.width());
  };
  std::mt19937 random(6);
  for (std::size_t t = 0; t < kTokens;) {
    CAPTURE(t);
    const std::size_t right = std::min<std::size_t>(random() % 20, kTokens - t - 1);
    const std::size_t rejected = random() % 40;
    std::vector<float> rows(at(t, 1 + right).begin(), at(t, 1 + right).end());
    rows.insert(rows.end(), wrong.begin(),
                wrong.begin() + static_cast<std::ptrdiff_t>(rejected * layer.width()));
    state->begin_speculation(right + rejected, {});
    const std::vector<float> out = layer.step({{state.get(), 1 + right + rejected}}, rows);
    REQUIRE(same_floats(std::span(out).first((1 + right) * queries),
                        std::span(alone).subspan(t * queries, (1 + right) * queries)));
    state->rollback(rejected);
    layer.step({{undisturbed.get(), 1 + right}}, at(t, 1 + right));
    t += 1 + right;
    REQUIRE(testing::saved(*state) == testing::saved(*undisturbed));
    REQUIRE(state->bytes() == undisturbed->bytes());
    REQUIRE(state->bytes() <= layer.mixer.layout()->state_bytes(static_cast<std::int64_t>(t)));
  }
}

TEST_CASE("KV cache: a team of threads gives the same bits", "[rows]") {
  const KvType type = GENERATE(from_range(kKvTypes));
  // Heads of keys are more than threads, or fewer: rows are shared then.
  const std::size_t kv_heads = GENERATE(1, 4);
  const std::size_t window = GENERATE(SIZE_MAX, 200);
  CAPTURE(to_string(type), kv_heads, window);
  const KvLayer layer =
      layer_of({.heads = 8, .kv_heads = kv_heads, .head_width = 16, .window = window}, type);
  const std::vector<float> inputs = layer.inputs(7, 400);
  const auto alone = layer.new_state();
  const std::vector<float> expected = layer.step({{alone.get(), 400}}, inputs);
  StepThreadPool team;
  const StepHelpers helpers(team, 2);
  while (team.threads() < 3) std::this_thread::yield();
  for (int i = 0; i < 5; ++i) {
    const auto state = layer.new_state();
    CHECK(same_floats(layer.step({{state.get(), 400}}, inputs, &team), expected));
  }
}

TEST_CASE("KV cache: sequences that a team shares have the bits of one thread", "[rows][threads]") {
  GatedSoftmaxShape shape{.heads = 8, .kv_heads = 2, .head_width = 64};
  shape.window = GENERATE(SIZE_MAX, std::size_t{500});
  const KvLayer layer(shape);
  StepThreadPool team;
  const StepHelpers helpers(team, 2);
  REQUIRE(team.threads() == 3);
  // Short and long ones, and in the last step a prompt beside rows that decode.
  const std::vector<std::size_t> lengths = {800, 5, 1100, 560, 1, 900, 850, 490};
  std::vector<std::unique_ptr<LayerState>> before;
  std::vector<float> rows;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    before.push_back(layer.new_state());
    const std::vector<float> all = layer.inputs(static_cast<unsigned>(i), lengths[i] + 40);
    layer.step({{before.back().get(), lengths[i]}}, all);
    const auto next = all.begin() + static_cast<std::ptrdiff_t>(lengths[i] * layer.width());
    rows.insert(rows.end(), next,
                i == 3 ? all.end() : next + static_cast<std::ptrdiff_t>(layer.width()));
  }
  const auto outputs = [&](StepThreadPool* shared) {
    std::vector<std::unique_ptr<LayerState>> states;
    std::vector<KvLayer::Run> runs;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      states.push_back(layer.new_state());
      states.back()->assign(*before[i]);
      runs.push_back({states.back().get(), i == 3 ? 40u : 1u});
    }
    return layer.step(runs, rows, shared);
  };
  const std::vector<float> expected = outputs(nullptr);
  for (int i = 0; i < 10; ++i) CHECK(same_floats(outputs(&team), expected));
}

TEST_CASE("KV cache: scores of thousands neither overflow nor vanish") {
  const KvType type = GENERATE(from_range(kKvTypes));
  const KvLayer layer = layer_of({.heads = 2, .kv_heads = 1, .head_width = 16}, type);
  std::vector<float> inputs = layer.inputs(8, 100);
  for (std::size_t t = 0; t < 100; ++t) {
    for (std::size_t c = 0; c < 48; ++c) inputs[t * layer.width() + c] *= 60.0f;
  }
  testing::for_each_instruction_set([&] {
    const std::vector<float> found = in_slices(layer, inputs, 100);
    const std::vector<double> expected = twin(layer, inputs);
    for (std::size_t i = 0; i < found.size(); ++i) {
      REQUIRE(std::abs(found[i] - expected[i]) < 2e-2);
    }
  });
}

TEST_CASE("KV cache: a value that is not finite shows in what sees it, and in nothing before it") {
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(to_string(type));
  const KvLayer layer = layer_of({.heads = 2, .kv_heads = 1, .head_width = 8, .window = 9}, type);
  const std::vector<float> good = layer.inputs(9, 40);
  constexpr std::size_t kBad = 20;
  std::vector<float> inputs = good;
  inputs[kBad * layer.width() + 16] = std::numeric_limits<float>::quiet_NaN();
  testing::for_each_instruction_set([&] {
    const std::vector<float> healthy = in_slices(layer, good, 40);
    const std::vector<float> found = in_slices(layer, inputs, 40);
    for (std::size_t t = kBad; t < kBad + 9; ++t) {
      CAPTURE(t);
      const auto row = std::span(found).subspan(t * 16, 16);
      CHECK(std::ranges::any_of(row, [](float x) { return std::isnan(x); }));
    }
    CHECK(same_floats(std::span(found).first(kBad * 16), std::span(healthy).first(kBad * 16)));
  });
}

}  // namespace
}  // namespace lintel
