// SPDX-License-Identifier: Apache-2.0
// GatedSoftmax: grouped softmax attention with rotary positions, the full layers of Qwen3.5, which
// have an output gate, and the windowed ones of hybrids without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/layers/mixers/mixer.h"
#include "model/layers/mixers/rotary.h"
#include "model/ops/kv_type.h"

namespace lintel {

class KvCache;        // model/layers/mixers/kv_cache.h
class KvCacheLayout;  // the same

struct GatedSoftmaxShape {
  std::size_t heads = 0;       // H of queries
  std::size_t kv_heads = 0;    // HKV of keys and values; query head j reads j / (H / HKV)
  std::size_t head_width = 0;  // D
  std::size_t rotated = 0;     // R of each head's D values turn, even; 0: none
  double rope_theta = 0.0;
  bool has_gate = false;  // each query head is followed by its gate
  KvType kv_type = KvType::kF32;
  std::size_t window = SIZE_MAX;  // positions that a query sees, its own among them

  std::size_t queries() const { return heads * head_width; }
  std::size_t keys() const { return kv_heads * head_width; }
};

struct GatedSoftmaxWeights {
  // [H D (2 with gates) + 2 HKV D, E]: rows of q (of each head its queries, then its gates), k, v.
  std::optional<Dense> in;
  Matrix query_norm;  // [1, D], as key_norm; both empty: none
  Matrix key_norm;
  float norm_eps = 0.0f;
  std::optional<Dense> out;  // [E, H D]
};

//   q, k = rope(rms(q; query_norm)), rope(rms(k; key_norm))
//   a = softmax over t - window < s <= t of q . k_s / sqrt(D)
//   y = out((sum a v) * sigmoid(gate))                             without gates: out(sum a v)
//
// The state of a sequence is a KvCache of rotated keys and of values [t, HKV, D]; where queries see
// a window, of the last of them.
class GatedSoftmax final : public Mixer {
 public:
  GatedSoftmax(const GatedSoftmaxShape& shape, GatedSoftmaxWeights weights);
  ~GatedSoftmax() override;

  std::shared_ptr<const StateLayout> layout() const override;
  bool keeps_state() const override { return true; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override;

 private:
  void prepare(std::size_t r, const MixerRows& rows, std::span<float> row,
               std::span<float> work) const;
  void attend(const KvCache& cache, MatrixView<const float> q, MatrixView<float> max,
              MatrixView<float> sum, MatrixView<float> out, StepThreadPool* team) const;

  const GatedSoftmaxShape shape_;
  const GatedSoftmaxWeights weights_;
  const Rotary rotary_;
  const std::shared_ptr<const KvCacheLayout> layout_;
};

}  // namespace lintel
