// SPDX-License-Identifier: Apache-2.0
// Swiglu: down(silu(gate h) * up h) (Shazeer 2020), the channel mixer of most families.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "model/layers/mixer.h"

namespace lintel {

class Swiglu final : public Mixer {
 public:
  // gate_up: [2 F, E], gate above up; down: [E, F].
  Swiglu(Dense gate_up, Dense down) : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  // Of the first y.rows() rows of input. y: [rows, E]. Uses matrix 0 and input 0 of scratch.
  void apply(const DenseInput& input, MatrixView<float> y, Dense::Output output,
             StepThreadPool* team, MixerScratch& scratch) const;
  // Room in scratch for as many rows: apply() of no more allocates nothing.
  void reserve(std::size_t rows, MixerScratch& scratch) const;
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override { return {&gate_up_, &down_}; }

 private:
  Dense gate_up_;
  Dense down_;
};

}  // namespace lintel
