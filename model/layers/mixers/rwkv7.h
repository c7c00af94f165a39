// SPDX-License-Identifier: Apache-2.0
// The two mixers of RWKV-7 (Peng et al. 2025, "RWKV-7 Goose").
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers/mixers/mixer.h"
#include "model/ops/mixer_kernels.h"

namespace lintel {

// A pair of low-rank products, second(f(first x)) + bias, in f32 or bf16: they feed exponentials.
struct LowRankPair {
  std::optional<Dense> first;   // [R, E]
  std::optional<Dense> second;  // [E, R], with the bias where there is one
};

struct Rwkv7Weights {
  std::array<Matrix, 6> mix;  // [1, E] of r, w, k, v, a, g
  std::optional<Dense> r, k, v, out;
  LowRankPair decay, rate, gate;  // w, a, g
  LowRankPair first_value;        // v; without products in layer 0
  Matrix k_k, k_a;                // [1, E]
  Matrix r_k;                     // [1, E]: [H, D]
  RowNorm head_norm;              // ln_x: gain and bias [1, E], for each head of D values
};

//   x_c = h + (h_before - h) mix_c for c in r, w, k, v, a, g
//   r, k, v = R x_r, K x_k, V x_v;  w = exp(-e^(-1/2) sigmoid(decay(x_w)))
//   a = sigmoid(rate(x_a)),  g = gate(x_g);  layer 0 leaves v to the others:
//   v += (v of layer 0 - v) sigmoid(first_value(x_v))
//   kk = unit(k k_k) for each head,  k = k (1 + (a - 1) k_a)
//   S = diag(w) S - (a kk) (kk^T S) + k v^T,  o = r^T S
//   y = out((norm(o) + (sum over D of r k r_k) v) g)
//
// The state of a sequence is S [H, D, D], then h of its last token [E].
class Rwkv7TimeMixer final : public Mixer {
 public:
  Rwkv7TimeMixer(std::size_t head_width, bool is_first_layer, UnitLength unit,
                 Rwkv7Weights weights);
  ~Rwkv7TimeMixer() override;

  std::shared_ptr<const StateLayout> layout() const override;
  bool keeps_state() const override { return true; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override;

 private:
  struct Values;

  // The parts of a step, in order.
  void project(const MixerRows& rows, const Values& values, MixerScratch& scratch) const;
  void make_keys(const MixerRows& rows, const Values& values) const;
  void feed(const MixerRows& rows, const Values& values, MixerScratch& scratch) const;
  void read_out(const MixerRows& rows, const Values& values, MatrixView<float> add_to,
                MixerScratch& scratch) const;

  const std::size_t head_width_;  // D
  const bool is_first_layer_;
  const UnitLength unit_;
  const Rwkv7Weights weights_;
  const std::shared_ptr<const StateLayout> layout_;
};

// y = value(relu(key(h + (h_before - h) mix))^2). The state of a sequence is h of its last token.
class Rwkv7ChannelMixer final : public Mixer {
 public:
  // mix: [1, E]; key: [F, E]; value: [E, F].
  Rwkv7ChannelMixer(Matrix mix, Dense key, Dense value);
  ~Rwkv7ChannelMixer() override;

  std::shared_ptr<const StateLayout> layout() const override;
  bool keeps_state() const override { return true; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override { return {&key_, &value_}; }

 private:
  const Matrix mix_;
  const Dense key_;
  const Dense value_;
  const std::shared_ptr<const StateLayout> layout_;
};

}  // namespace lintel
