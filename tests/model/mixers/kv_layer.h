// SPDX-License-Identifier: Apache-2.0
// A GatedSoftmax whose inputs are its queries, keys and values, and whose output is what attention
// makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "model/layers/mixers/gated_softmax.h"
#include "model/layers/mixers/kv_cache.h"

namespace lintel::testing {

struct KvLayer {
  explicit KvLayer(const GatedSoftmaxShape& given) : shape(given), mixer(given, weights()) {}

  // Queries [H D], then keys and values [HKV D].
  std::size_t width() const { return shape.queries() + 2 * shape.keys(); }
  std::unique_ptr<LayerState> new_state() const { return mixer.layout()->new_state({}); }

  // Tokens of a sequence, by its number and their positions.
  std::vector<float> inputs(unsigned sequence, std::size_t count) const {
    std::mt19937 random(1 + sequence);
    std::normal_distribution<float> normal;
    std::vector<float> all(count * width());
    for (float& value : all) value = normal(random);
    return all;
  }

  // Rows of states: how many of each, one after the other.
  struct Run {
    LayerState* state = nullptr;
    std::size_t count = 0;
  };
  // rows: [all, width()]. Returns [all, H D].
  std::vector<float> step(const std::vector<Run>& runs, std::span<const float> rows,
                          StepThreadPool* team = nullptr) const {
    std::vector<LayerState*> states;
    for (const Run& run : runs) states.insert(states.end(), run.count, run.state);
    const std::size_t count = states.size();
    DenseInput input(WeightType::kF32, count, width());
    for (std::size_t r = 0; r < count; ++r) input.assign(r, rows.subspan(r * width(), width()));
    const std::vector<std::int64_t> positions(count);  // nothing turns
    Matrix sums(count, width());
    MixerScratch scratch;
    mixer.step({.states = states,
                .positions = positions,
                .normed = input.values().rows_from(0, count),
                .input = input,
                .exact = input,
                .carry = {},
                .team = team},
               sums.view(), scratch);
    std::vector<float> out;
    for (std::size_t r = 0; r < count; ++r) {
      const auto row = sums.row(r).first(shape.queries());
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  const GatedSoftmaxShape shape;
  const GatedSoftmax mixer;

 private:
  static Dense identity(std::size_t rows, std::size_t cols) {
    std::vector<float> weight(rows * cols);
    for (std::size_t i = 0; i < std::min(rows, cols); ++i) weight[i * cols + i] = 1.0f;
    return Dense(weight, std::vector<float>(rows), cols, rows, {.kernels = KernelChoice::kOwn});
  }
  GatedSoftmaxWeights weights() const {
    GatedSoftmaxWeights all;
    all.in = identity(width(), width());
    all.out = identity(width(), shape.queries());
    return all;
  }
};

inline KvCache& cache_of(LayerState& state) { return static_cast<KvCache&>(state); }

inline std::vector<std::byte> saved(const LayerState& state, std::int64_t since = 0) {
  std::vector<std::byte> bytes;
  StateByteWriter writer(bytes);
  state.save(since, writer);
  return bytes;
}

inline bool same_floats(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace lintel::testing
