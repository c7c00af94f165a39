// SPDX-License-Identifier: Apache-2.0
// GatedLinear: linear attention (Katharopoulos et al. 2020) with decays or without, the layers of
// GLA (Yang et al. 2024), RetNet (Sun et al. 2023) and linear transformers.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers/mixers/mixer.h"
#include "model/layers/mixers/rotary.h"

namespace lintel {

// phi, of each head's q and k. W, b are of the layer, the same for all heads.
enum class HeadFeatures {
  kIdentity,
  kRelu,
  kEluPlusOne,
  kT2r,       // relu(W x + b) (Kasai et al. 2021)
  kHedgehog,  // softmax of [2 u, -2 u], u = W x + b (Zhang et al. 2024)
  kProduct    // (W1 x + b1) * (W2 x + b2)
};

struct GatedLinearShape {
  std::size_t heads = 0;        // H of queries
  std::size_t kv_heads = 0;     // HKV of keys and values; query head j reads j / (H / HKV)
  std::size_t key_width = 0;    // DK of a head
  std::size_t value_width = 0;  // DV of a head
  std::size_t taps = 0;         // K of the convolution; 0: none
  double rope_theta = 0.0;      // of q and k, all DK values; 0: they do not turn
  HeadFeatures features = HeadFeatures::kIdentity;
  bool sums_query_to_one = false;  // phi(q) / (sum phi(q) + 1e-4)
  bool sums_key_to_one = false;
  bool is_normalised = false;  // o / (q Z + 1e-10), Z the sum of the keys
  bool has_gate = false;

  std::size_t feature_width() const {  // C of phi
    return features == HeadFeatures::kHedgehog ? 2 * key_width : key_width;
  }
  // Columns of S: those of the values, then Z as the sum of ones where there is one.
  std::size_t sum_width() const { return value_width + (is_normalised ? 1 : 0); }
  std::size_t queries() const { return heads * feature_width(); }
  std::size_t keys() const { return kv_heads * feature_width(); }
  std::size_t channels() const { return queries() + keys() + kv_heads * sum_width(); }
  std::size_t outputs() const { return heads * value_width; }
};

struct GatedLinearWeights {
  // [(H + HKV) DK + HKV DV + H DV, E]: rows of q, k and v, then of g with a gate.
  std::optional<Dense> in;
  Matrix convolution;       // [K, channels()]: the transposed weights, the newest row's last
  Matrix convolution_bias;  // [1, channels()]; empty: none
  struct Map {
    std::optional<Dense> first;   // [DK, DK] in f32: W
    std::optional<Dense> second;  // W2 of kProduct
  };
  Map query_map, key_map;

  Matrix head_decay;  // [1, H] a constant of each head; empty: none
  // Or decays of each row of S: exp(max(logsigmoid(decay(decay_rank(h))) / divisor, least)).
  std::optional<Dense> decay_rank;  // [R, E] in f32
  std::optional<Dense> decay;       // [HKV DK, R] in f32, with its bias
  float decay_divisor = 1.0f;
  float least_log_decay = -std::numeric_limits<float>::infinity();

  Matrix norm;  // [1, DV]
  float norm_eps = 0.0f;
  std::optional<Dense> out;  // [E, H DV]
};

//   q, k, v = in h, or silu(conv(in h));  q, k = phi(rope(q)), phi(rope(k))
//   S = diag(d) S + k v^T,  o = S^T q / sqrt(C)
//   y = out(rms(o) * silu(g))                                      without a gate: out(rms(o))
//
// The state of a sequence is S [H, C, sum_width()], then the convolution's last K - 1 rows.
class GatedLinear final : public Mixer {
 public:
  GatedLinear(const GatedLinearShape& shape, GatedLinearWeights weights);
  ~GatedLinear() override;

  std::shared_ptr<const StateLayout> layout() const override;
  bool keeps_state() const override { return true; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override;

 private:
  class Layout;
  // The inputs of the recurrence: q, k and v [rows, channels()] before the convolution, and decays
  // [rows, HKV DK] or [rows, 0].
  MatrixView<float> map_heads(MatrixView<float> in, MixerScratch& scratch) const;
  void rotate(const MixerRows& rows, MatrixView<float> in) const;
  MatrixView<float> decays(const MixerRows& rows, MixerScratch& scratch) const;
  void finish(MatrixView<const float> in, MatrixView<float> out) const;

  const Rotary rotary_;
  const std::shared_ptr<const Layout> layout_;
};

}  // namespace lintel
