// One token of attention by sums: the feature map, and the sums S and Z. SIMD by Highway, chosen at
// run time. The rules are those of simd/kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lintel {

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

}  // namespace lintel
