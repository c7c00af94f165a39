// SPDX-License-Identifier: Apache-2.0
// One token of attention by sums: phi of linear attention, and the sums S and Z. SIMD by Highway,
// chosen at run time. The rules are those of model/core/kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lintel {

// phi(x) = elu(x) + 1: x + 1 where x > 0, exp(x) elsewhere. The spans have one length and may be
// the same.
void elu_plus_one(std::span<const float> x, std::span<float> phi);

// Shape of the sums of one layer.
struct SumShape {
  std::size_t n_heads = 0;     // H
  std::size_t n_features = 0;  // C
  std::size_t d_head = 0;      // D = M
  float eps = 0.0f;            // added to the denominator
};

// The position from which on sums are rounded up or down by a draw. A sum in f32 rounded to nearest
// stops at 2^24 times what is added to it: Z first, S later, and the output goes wrong. With
// probability by what is cut off, the sums stay right in the mean, to some 1e-4 at any length. Up
// to here, nearest is as good, and faster.
inline constexpr std::int64_t kFirstDrawnPosition = std::int64_t{1} << 17;

// One token of linear attention (Katharopoulos et al. 2020, equations 18 to 20), per head h:
//   Z[h] += phi_k    S[h] += phi_k v^T    out = phi_q^T S[h] / (phi_q^T Z[h] + eps)
// phi_q, phi_k: [H*C]; v, out: [H*D]; s: [H, C, D]; z: [H, C]. out overlaps nothing else. position:
// of the token in its sequence, from 0; from kFirstDrawnPosition on the sums depend on it. The
// draws do not differ between sequences.
void linear_attention_step(const SumShape& shape, std::int64_t position, const float* phi_q,
                           const float* phi_k, const float* v, float* s, float* z, float* out);

// A token of a run. phi_q, phi_k: [H*C]; v, out: [H*D]. What is written overlaps nothing that is
// read.
struct LinearAttentionRow {
  const float* phi_q = nullptr;
  const float* phi_k = nullptr;
  const float* v = nullptr;
  float* out = nullptr;
};

// Consecutive tokens of one sequence: num_unread, which enter the sums without an output (phi_q and
// out are not looked at); then up to num_kept in all, which enter the sums and have one; the others
// have one as if they entered the sums, and leave nothing.
struct LinearAttentionRows {
  const LinearAttentionRow* rows = nullptr;
  std::size_t num_rows = 0;  // at most kMostLinearRows
  std::size_t num_unread = 0;
  std::size_t num_kept = 0;  // unread rows included
};
inline constexpr std::size_t kMostLinearRows = 64;

// Has the bits of that many linear_attention_step before kFirstDrawnPosition: a part of S stays in
// registers while all tokens pass by. work: linear_rows_floats(), where some do not stay.
void linear_attention_rows(const SumShape& shape, const LinearAttentionRows& rows, float* s,
                           float* z, float* work);
std::size_t linear_rows_floats(const SumShape& shape);

// The formula by which relative_attention_step reads the sums.
enum class SumReading {
  kByRow,     // linear attention: phi_q^T S / (phi_q^T Z + eps)
  kByChannel  // Efficient Attention (Shen et al. 2018): sum over c of softmax(q)_c S_c / Z_c
};

// The same for log phi, of any size: each feature's sums are relative to its greatest key so far,
//   m[h] = max(m[h], log_k)    Z[h] = sum of exp(log_k - m[h])    S[h] = sum of that times v^T
// so that every Z is at least 1 once there is a token; and the weights of the rows of S are
// relative to their greatest, so that the denominator is at least 1. A row of S is scaled where
// its m rises, which it does ever more seldom, and else read and written once. Z = 0 says that
// there was no token. log_q, log_k: [H*C], overwritten; m: [H, C]; the rest as above. Nothing but
// s, z and m may overlap what is written.
void relative_attention_step(const SumShape& shape, SumReading reading, std::int64_t position,
                             float* log_q, float* log_k, const float* v, float* s, float* z,
                             float* m, float* out);

}  // namespace lintel
