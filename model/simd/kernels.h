// What a layer does between its matrix products. SIMD by Highway, chosen at run time.
//
// Every function is a pure function of the values it reads: the bits of a row do not depend on how
// many rows there are, on alignment or on the stride (promise 1). They do depend on the instruction
// set. Nothing allocates. None of the pointers needs any alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "model/base/tensor.h"

namespace lintel {

// y = (x - mean) / sqrt(variance + eps) * gain + bias for every row; the biased variance. y may be
// x. x, y: [rows, E]; gain, bias: [E].
void layer_norm(MatrixView<const float> x, std::span<const float> gain, std::span<const float> bias,
                float eps, MatrixView<float> y);

// x += delta. Both [rows, E].
void add_residual(MatrixView<const float> delta, MatrixView<float> x);

// In place: max(x, 0); and x/2 (1 + erf(x/sqrt(2))), to 5e-7 absolute on [-10, 10].
void relu(std::span<float> x);
void gelu(std::span<float> x);

// phi(x) = elu(x) + 1: x + 1 where x > 0, exp(x) elsewhere. The spans have one length and may be
// the same.
void elu_plus_one(std::span<const float> x, std::span<float> phi);

// Shape of the linear attention of one layer; C = M = D.
struct LinearAttentionShape {
  std::size_t n_heads = 0;  // H
  std::size_t d_head = 0;   // D
  float eps = 0.0f;
};

// The position from which on sums are rounded up or down by a draw. A sum in f32 rounded to nearest
// stops at 2^24 times what is added to it: Z first, S later, and the output goes wrong. With
// probability by what is cut off, the sums stay right in the mean, to some 1e-4 at any length. Up
// to here, nearest is as good, and faster.
inline constexpr std::int64_t kFirstDrawnPosition = std::int64_t{1} << 17;

// One token of linear attention (Katharopoulos et al. 2020, equations 18 to 20), per head h:
//   Z[h] += phi_k    S[h] += phi_k v^T    out = phi_q^T S[h] / (phi_q^T Z[h] + eps)
// phi_q, phi_k, v, out: [H*D]; s: [H, D, M]; z: [H, D]. out overlaps nothing else. position: of the
// token in its sequence, from 0; from kFirstDrawnPosition on the sums depend on it. The draws do
// not differ between sequences.
void linear_attention_step(const LinearAttentionShape& shape, std::int64_t position,
                           const float* phi_q, const float* phi_k, const float* v, float* s,
                           float* z, float* out);

// Neither NaN nor infinity among x.
bool all_finite(std::span<const float> x);

// The instruction set in use, e.g. "AVX2".
std::string kernel_target();

}  // namespace lintel
