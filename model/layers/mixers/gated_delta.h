// SPDX-License-Identifier: Apache-2.0
// GatedDelta: the gated delta rule (Yang, Kautz and Hatamizadeh 2024) with short convolutions, the
// linear layers of Qwen3.5.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers/mixer.h"

namespace lintel {

struct GatedDeltaShape {
  std::size_t key_heads = 0;    // HK
  std::size_t value_heads = 0;  // HV, a multiple of HK
  std::size_t key_width = 0;    // DK of a head
  std::size_t value_width = 0;  // DV of a head
  std::size_t taps = 0;         // K of the convolution
  // Which key head value head j reads: j / (HV / HK), or j % HK as GGUF files order them.
  bool key_heads_are_tiled = false;

  std::size_t keys() const { return key_heads * key_width; }
  std::size_t values() const { return value_heads * value_width; }
  std::size_t channels() const { return 2 * keys() + values(); }  // C of the convolution
  std::size_t key_head_of(std::size_t value_head) const {
    return key_heads_are_tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
};

struct GatedDeltaWeights {
  std::optional<Dense> in;    // [C + HV DV, E]: rows of q, k and v, then of z
  std::optional<Dense> rate;  // [2 HV, E] in f32: rows of b, then of a
  Matrix convolution;         // [K, C]: the transposed weights, the newest row's last
  Matrix decay;               // [1, HV] -exp(A_log)
  Matrix decay_bias;          // [1, HV] dt_bias
  Matrix norm;                // [1, DV]
  float norm_eps = 0.0f;
  std::optional<Dense> out;  // [E, HV DV]
};

//   q, k, v = silu(conv(in h));  q, k brought to length one for each head
//   beta = sigmoid(b),  d = exp(decay * softplus(a + decay_bias))
//   S = d S,  S = S + k (beta (v - S^T k))^T,  o = S^T q / sqrt(DK)
//   y = out(rms(o) * silu(z))
//
// The state of a sequence is S [HV, DK, DV], then the convolution's last K - 1 rows [K - 1, C].
class GatedDelta final : public Mixer {
 public:
  GatedDelta(const GatedDeltaShape& shape, GatedDeltaWeights weights);
  ~GatedDelta() override;

  std::shared_ptr<const StateLayout> layout() const override;
  bool keeps_state() const override { return true; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override;

 private:
  class Layout;
  const std::shared_ptr<const Layout> layout_;
};

}  // namespace lintel
