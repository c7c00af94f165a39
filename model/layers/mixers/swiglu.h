// SPDX-License-Identifier: Apache-2.0
// Swiglu: down(silu(gate h) * up h) (Shazeer 2020), the channel mixer of most families.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "model/layers/mixers/mixer.h"

namespace lintel {

class Swiglu final : public Mixer {
 public:
  // gate_up: [2 F, E], gate above up; down: [E, F].
  Swiglu(Dense gate_up, Dense down) : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  // Computes the first y.rows() rows of input, without adapters. y: [rows, E]. Uses matrix 0 and
  // input 0 of scratch.
  void apply(const DenseInput& input, MatrixView<float> y, StepThreadPool* team,
             MixerScratch& scratch) const;
  // Computes all rows of a step, with their adapters.
  void apply(const MixerRows& rows, MatrixView<float> y, Dense::Output output,
             MixerScratch& scratch) const;
  void reserve(std::size_t rows, MixerScratch& scratch) const override;
  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override {
    apply(rows, add_to.rows_from(0, rows.count()), Dense::Output::kAdd, scratch);
  }
  std::vector<const Dense*> products() const override { return {&gate_up_, &down_}; }

 private:
  // both: [rows, 2 F], gate and up. The second half becomes what `down` multiplies.
  const DenseInput& activate(MatrixView<float> both, StepThreadPool* team,
                             MixerScratch& scratch) const;

  Dense gate_up_;
  Dense down_;
};

}  // namespace lintel
