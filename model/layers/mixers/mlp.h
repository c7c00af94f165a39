// SPDX-License-Identifier: Apache-2.0
// Mlp: linear2(activation(linear1 h)), the channel mixer of models of our own format.
#pragma once

#include <utility>
#include <vector>

#include "model/layers/mixers/mixer.h"

namespace lintel {

class Mlp final : public Mixer {
 public:
  // linear1: [F, E], with the activation; linear2: [E, F]. hidden: what the activation leaves.
  Mlp(Dense linear1, Dense linear2, DenseInput::Range hidden)
      : linear1_(std::move(linear1)), linear2_(std::move(linear2)), hidden_(hidden) {}

  bool reads_floats() const override { return false; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override { return {&linear1_, &linear2_}; }

 private:
  const Dense linear1_;
  const Dense linear2_;
  const DenseInput::Range hidden_;
};

}  // namespace lintel
