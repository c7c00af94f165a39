// SPDX-License-Identifier: Apache-2.0
// The model in double precision, written as the formulas stand and for nothing but to be compared
// with: the attention in its O(N^2) form, no packing, no recurrence, no vectors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "model/config/config.h"
#include "model/formats/weights.h"

namespace lintel::testing {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// elu(x) + 1
double phi(double x);
// x/2 (1 + erf(x/sqrt(2)))
double exact_gelu(double x);
// The biased variance.
Row layer_norm_reference(const Row& x, std::span<const float> gain, std::span<const float> bias,
                         double eps);
// x W^T + b. weight: [out, in].
Row dense_reference(const Row& x, std::span<const float> weight, std::span<const float> bias);

// out[t] = sum over s <= t of phi(q_t) phi(k_s) v_s / (sum over s <= t of phi(q_t) phi(k_s) + eps),
// per head. q, k, v: [positions][H*D].
Rows linear_attention_reference(const Rows& q, const Rows& k, const Rows& v, int n_heads,
                                int d_head, double eps);

// Outputs of the head after every token, [tokens][num_outputs]. Every layer must be linear.
Rows model_reference(const ModelConfig& config, const ModelWeights& weights,
                     std::span<const std::int32_t> tokens);

}  // namespace lintel::testing
