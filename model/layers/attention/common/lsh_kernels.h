// SPDX-License-Identifier: Apache-2.0
// Kernels of attention by locality-sensitive hashing for one position. SIMD by Highway, chosen
// at run time. The rules are those of softmax_kernels.h.
#pragma once

#include <cstddef>
#include <span>

namespace lintel {

// k = x / |x|; zeros where |x| is 0.
void normalize(std::span<const float> x, float* k);

// Columns of planes come in multiples of this.
inline constexpr std::size_t kPlaneMultiple = 16;

// projected[i] = sum over d of k[d] planes[d][i]. planes: [D, width], width a multiple of
// kPlaneMultiple.
void project(std::span<const float> k, const float* planes, std::size_t width, float* projected);

// The first maximum of [x, -x], 0 .. 2n - 1; 0 where there is a NaN. REQUIRES: x is followed by
// zeros up to a multiple of kPlaneMultiple.
std::size_t signed_argmax(const float* x, std::size_t n);

// Softmax attention of one query over members wherever they lie: out [D] = sum of p_i v_i with
// p = softmax of the scores q . k_i, to the first of which first_bias is added. q: [D], scaled. A
// member is k [D], then v [D]. weights: [members] floats of working memory. Returns the logarithm
// of the sum of exp(score).
float attend_members(std::span<const float> q, std::span<const float* const> members,
                     float first_bias, float* weights, float* out);

}  // namespace lintel
