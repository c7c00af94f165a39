// SPDX-License-Identifier: Apache-2.0
// Experts: a sparse mixture of experts with one that is shared by all rows (Shazeer et al. 2017,
// Dai et al. 2024), the channel mixer of Qwen3-Next and of Qwen3.5's mixtures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/layers/mixers/mixer.h"
#include "model/layers/mixers/swiglu.h"

namespace lintel {

struct ExpertsWeights {
  // [N + 1, E] in f32: a row for each expert, then the gate of the shared one.
  std::optional<Dense> router;
  std::vector<Swiglu> experts;   // N, at least 1
  std::optional<Swiglu> shared;  // of the same weight type
};

//   p = softmax(router h) over all N;  the k largest are chosen, of equal ones that of lower index
//   w = p, or p / (sum of the k) where weights are normalized
//   y = sum over the chosen, in order of index, of w expert(h),  + sigmoid(gate h) shared(h)
//
// The rows of a step are sorted by expert: the weights of an expert are read once for all its rows,
// and not at all where it has none.
class Experts final : public Mixer {
 public:
  // chosen: k, 1 .. N.
  Experts(std::size_t chosen, bool is_normalized, ExpertsWeights weights);
  ~Experts() override;

  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override;

 private:
  // logits: [N] of a row, which become p. chosen, weights: [k] in order of index.
  void choose(std::span<float> logits, std::span<std::uint32_t> chosen,
              std::span<float> weights) const;
  // sum += weight expert(h) for the expert's rows. of_expert: places of all, k a row, that have it;
  // weights: of all places; sum: [rows, E].
  void add_expert(const Swiglu& expert, const MixerRows& rows,
                  std::span<const std::uint32_t> of_expert, std::span<const float> weights,
                  MatrixView<float> sum, MixerScratch& scratch) const;

  const std::size_t chosen_;  // k
  const bool is_normalized_;
  const ExpertsWeights weights_;
};

}  // namespace lintel
