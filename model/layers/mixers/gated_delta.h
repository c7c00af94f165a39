// SPDX-License-Identifier: Apache-2.0
// GatedDelta: the delta rule (Schlag, Irie and Schmidhuber 2021), with a decay (Yang, Kautz and
// Hatamizadeh 2024) or without, and short convolutions. The linear layers of Qwen3.5, DeltaNet and
// Gated DeltaNet.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers/mixers/mixer.h"

namespace lintel {

// Steps that q and k pass after the convolution.
enum class KeyActivation { kIdentity, kSilu, kRelu, kEluPlusOne };
enum class KeyNorm {
  kLength,  // x / sqrt(sum x^2 + 1e-6) of each head
  kSum      // x / sum x
};

struct GatedDeltaShape {
  std::size_t key_heads = 0;    // HK
  std::size_t value_heads = 0;  // HV, a multiple of HK
  std::size_t key_width = 0;    // DK of a head
  std::size_t value_width = 0;  // DV of a head
  std::size_t taps = 0;         // K of the convolution
  // Value head j reads key head j / (HV / HK); true: j % HK, as GGUF files order them.
  bool key_heads_are_tiled = false;
  KeyActivation key_activation = KeyActivation::kSilu;
  KeyNorm key_norm = KeyNorm::kLength;
  bool has_rate = true;    // else sigmoid(b) is 1
  float most_rate = 1.0f;  // the factor of sigmoid(b): 2 lets eigenvalues be negative
  bool has_decay = true;   // else d is 1
  bool has_gate = true;

  std::size_t keys() const { return key_heads * key_width; }
  std::size_t values() const { return value_heads * value_width; }
  std::size_t channels() const { return 2 * keys() + values(); }  // C of the convolution
  // Rates of each row: b where there is a rate, then a where there is a decay.
  std::size_t rates() const { return (has_rate ? value_heads : 0) + (has_decay ? value_heads : 0); }
  std::size_t key_head_of(std::size_t value_head) const {
    return key_heads_are_tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
};

struct GatedDeltaWeights {
  std::optional<Dense> in;    // [C + HV DV, E]: rows of q, k and v, then of z with a gate
  std::optional<Dense> rate;  // [rates(), E] in f32: rows of b, then of a; null: neither
  // [K, C]: the transposed weights, the newest row's last. Without a convolution one row of ones.
  Matrix convolution;
  Matrix convolution_bias;  // [1, C]; empty: none
  Matrix decay;             // [1, HV] -exp(A_log); as decay_bias, empty without a decay
  Matrix decay_bias;        // [1, HV] dt_bias
  Matrix norm;              // [1, DV]
  float norm_eps = 0.0f;
  std::optional<Dense> out;  // [E, HV DV]
};

//   q, k, v = act(conv(in h)), silu for v;  q, k normed for each head
//   beta = most_rate sigmoid(b),  d = exp(decay * softplus(a + decay_bias))
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
