// SPDX-License-Identifier: Apache-2.0
// Mlp: linear2(activation(linear1 h)), the channel mixer of models of our own format.
#pragma once

#include <utility>
#include <vector>

#include "model/layers/mixers/mixer.h"

namespace lintel {

class Mlp final : public Mixer {
 public:
  // linear1: [F, E], with the activation; linear2: [E, F]. range: of what the activation leaves.
  Mlp(Dense linear1, Dense linear2, DenseInput::Range range)
      : linear1_(std::move(linear1)), linear2_(std::move(linear2)), range_(range) {}

  bool reads_floats() const override { return false; }
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  void reserve(std::size_t rows, MixerScratch& scratch) const override { hidden(rows, scratch); }
  std::vector<const Dense*> products() const override { return {&linear1_, &linear2_}; }

 private:
  DenseInput& hidden(std::size_t rows, MixerScratch& scratch) const {
    return scratch.input(0, linear2_.weight_type(), rows, linear2_.in_features(), range_);
  }

  const Dense linear1_;
  const Dense linear2_;
  const DenseInput::Range range_;
};

}  // namespace lintel
