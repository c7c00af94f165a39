// SPDX-License-Identifier: Apache-2.0
// What the naive twins of kinds of attention have in common: inputs, sums in double, and how far
// from them a backend is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "model/layers/attention/attention.h"
#include "tests/model/support/reference.h"

namespace lintel::testing {

inline constexpr double kTwinTolerance = 2e-5;  // of outputs that are means of N(0, 1) values

struct TwinInputs {
  AttentionConfig config;
  LayerDims dims;
  std::vector<Matrix> own = {};
  // [n, H*D] each, in the order in which the kind declares what it reads.
  std::vector<Matrix> inputs = {};

  std::size_t num_tokens() const { return inputs.front().rows(); }
  AttentionParams params() const { return {config, dims, own}; }
  // REQUIRES: the kind declares the key "scale".
  double scale() const { return config.number("scale", 1.0 / std::sqrt(dims.d_head)); }
  std::vector<MatrixView<const float>> rows(std::size_t first, std::size_t count) const {
    std::vector<MatrixView<const float>> parts;
    for (const Matrix& matrix : inputs) parts.push_back(matrix.view().rows_from(first, count));
    return parts;
  }
};

// All N(0, 1).
inline TwinInputs normal_inputs(const AttentionConfig& config, int n_heads, int d_head,
                                std::size_t n, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  TwinInputs in{config, {.d_model = n_heads * d_head, .n_heads = n_heads, .d_head = d_head}};
  const auto fill = [&](Matrix matrix) {
    for (float& x : matrix.values()) x = normal(generator);
    return matrix;
  };
  for (const OwnTensor& tensor : own_tensors(config, in.dims)) {
    in.own.push_back(fill(TensorSpec{tensor.name, tensor.shape}.new_matrix()));
  }
  for (const Projection& p : config.kind().projections(config, in.dims)) {
    if (p.is_read) in.inputs.push_back(fill(Matrix(n, static_cast<std::size_t>(p.width))));
  }
  return in;
}

inline std::span<const float> head_of(const Matrix& rows, std::size_t t, int head, int d_head) {
  return rows.row(t).subspan(static_cast<std::size_t>(head) * d_head, d_head);
}

inline double dot(std::span<const float> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += double{a[c]} * b[c];
  return sum;
}

// Softmax over scores of a set of positions; also the logarithm of the sum of exponentials.
inline double attend(const std::vector<double>& scores, const std::vector<std::size_t>& positions,
                     const Matrix& v, int head, int d_head, Row& out) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - largest);
  out.assign(d_head, 0.0);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto value = head_of(v, positions[i], head, d_head);
    for (int m = 0; m < d_head; ++m) out[m] += std::exp(scores[i] - largest) / sum * value[m];
  }
  return largest + std::log(sum);
}

// Softmax attention of every position t to those s up to it for which sees(head, t, s), as its
// formula says.
template <typename Sees>
Rows softmax_rows(const TwinInputs& in, const Sees& sees) {
  Rows outputs;
  for (std::size_t t = 0; t < in.num_tokens(); ++t) {
    Row all;
    for (int h = 0; h < in.dims.n_heads; ++h) {
      std::vector<double> scores;
      std::vector<std::size_t> positions;
      for (std::size_t s = 0; s <= t; ++s) {
        if (!sees(h, t, s)) continue;
        const auto k = head_of(in.inputs[1], s, h, in.dims.d_head);
        scores.push_back(in.scale() *
                         dot(head_of(in.inputs[0], t, h, in.dims.d_head), Row(k.begin(), k.end())));
        positions.push_back(s);
      }
      Row out;
      attend(scores, positions, in.inputs[2], h, in.dims.d_head, out);
      all.insert(all.end(), out.begin(), out.end());
    }
    outputs.push_back(all);
  }
  return outputs;
}

// The outputs of steps in slices of random lengths.
inline Matrix steps(const TwinInputs& in, std::mt19937& generator) {
  const auto backend = make_attention(in.params());
  const AlignedArray<float> block = make_aligned<float>(backend->block_floats());
  const auto state = backend->new_state({block.get(), backend->block_floats()});
  AttentionScratch scratch;
  Matrix out(in.num_tokens(), in.dims.width());
  for (std::size_t t = 0; t < in.num_tokens();) {
    const std::size_t count = std::min<std::size_t>(1 + generator() % 9, in.num_tokens() - t);
    const std::vector<LayerState*> states(count, state.get());
    backend->step(states, in.rows(t, count), out.view().rows_from(t, count), scratch);
    t += count;
  }
  return out;
}

inline Matrix full_pass(const TwinInputs& in) {
  const auto backend = make_attention(in.params());
  AttentionScratch scratch;
  Matrix out(in.num_tokens(), in.dims.width());
  backend->full_pass(in.rows(0, in.num_tokens()), out.view(), scratch);
  return out;
}

inline double largest_difference(const Matrix& got, const Rows& expected) {
  double largest = 0.0;
  for (std::size_t t = 0; t < expected.size(); ++t) {
    for (std::size_t m = 0; m < expected[t].size(); ++m) {
      const double difference = std::abs(double{got.row(t)[m]} - expected[t][m]);
      // NaN counts as a difference.
      largest = difference <= largest ? largest : difference;
    }
  }
  return largest;
}

}  // namespace lintel::testing
