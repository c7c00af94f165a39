// SPDX-License-Identifier: Apache-2.0
// Kernels of token and channel mixers between matrix products: norms, gates, short convolutions,
// recurrences. SIMD by Highway, chosen at run time.
//
// As in model/core/kernels.h: pure functions, the bits of a row do not depend on what else is
// computed with it. Nothing allocates. Pointers need no alignment.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "model/core/tensor.h"

namespace lintel {

// y = x / sqrt(mean(x^2) + eps) * gain for every row (Zhang and Sennrich 2019). y may be x. x, y:
// [rows, width]; gain: [width].
void rms_norm(MatrixView<const float> x, std::span<const float> gain, float eps,
              MatrixView<float> y);

// Ways to scale a vector to length one.
enum class UnitLength {
  kAddInside,  // x / sqrt(sum x^2 + 1e-6), as FLA's kernels
  kMaximum     // x / max(sqrt(sum x^2), 1e-12), as torch.nn.functional.normalize
};
// Scales x in place to length one, then by `scale`.
void to_unit_length(std::span<float> x, UnitLength unit, float scale = 1.0f);

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
// log(1 + exp(x)), without loss for large x.
inline float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

// x *= silu(gate) and x *= sigmoid(gate), where silu(g) = g sigmoid(g). As many of both.
void multiply_silu(std::span<const float> gate, std::span<float> x);
void multiply_sigmoid(std::span<const float> gate, std::span<float> x);
// Computes max(x, 0)^2 in place.
void squared_relu(std::span<float> x);
// out = a + (b - a) * mix. As many of all.
void interpolate(std::span<const float> a, std::span<const float> b, std::span<const float> mix,
                 std::span<float> out);

// RWKV-7's keys: unit = k k_k, then k *= 1 + (a - 1) k_a. As many of all.
void weigh_keys(std::span<const float> k_k, std::span<const float> k_a, std::span<const float> a,
                std::span<float> k, std::span<float> unit);
// out = -a b. As many of all.
void multiply_negated(std::span<const float> a, std::span<const float> b, std::span<float> out);
// RWKV-7's output of a head: y = (y + (sum of r k r_k) v) gate. As many of all.
void add_bonus(std::span<const float> r, std::span<const float> k, std::span<const float> r_k,
               std::span<const float> v, std::span<const float> gate, std::span<float> y);

// Compute in place silu(x), sigmoid(x), tanh(x), exp(factor sigmoid(x)).
void silu(std::span<float> x);
void sigmoid(std::span<float> x);
void hyperbolic_tangent(std::span<float> x);
void exp_of_sigmoid(float factor, std::span<float> x);

// A causal convolution of each channel with the `taps` - 1 rows before, then silu where
// has_activation. out[c] = bias[c] + sum over j of weight[j, c] row_j[c], where the last row is x.
struct ShortConvolution {
  std::size_t taps = 0;
  std::span<const float> weight;  // [taps, C]
  std::span<const float> bias;    // [C]; empty: none
  bool has_activation = true;
};
// Convolves the channels from `first` on, as many as `out` has; out is not a part of x. tail: [taps
// - 1, C], the rows before x, oldest first; afterwards x is the last of them, in these channels. x:
// [C].
void short_convolution(const ShortConvolution& convolution, std::span<float> tail,
                       std::span<const float> x, std::size_t first, std::span<float> out);

// One token of one head in a recurrence on S [DK, DV].
//
//   p = read_scale S^T read
//   without erase:  u = beta (v - p),  S = diag(decay) S + write u^T      the delta rule
//   with erase:     S = diag(decay) S + erase p^T + write v^T             RWKV-7
//   without read:   S = diag(decay) S + write v^T                         plain sums
//   out = S^T q                                                           of the new S
struct RecurrenceToken {
  const float* decay = nullptr;  // [DK]; null: decay_of_all
  const float* read = nullptr;   // [DK]; null: p is not needed
  const float* write = nullptr;  // [DK]
  const float* erase = nullptr;  // [DK]; null: the delta rule
  const float* v = nullptr;      // [DV]
  const float* q = nullptr;      // [DK]; null: no output
  float* out = nullptr;          // [DV]
  float decay_of_all = 1.0f;
  float read_scale = 1.0f;
  float beta = 1.0f;
};

// Feeds tokens in order. s: [DK, DV]. What is null in one token, but for q, is null in all.
void feed_recurrence(std::size_t dk, std::size_t dv, float* s,
                     std::span<const RecurrenceToken> tokens);

}  // namespace lintel
