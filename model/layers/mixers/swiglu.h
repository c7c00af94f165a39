// SPDX-License-Identifier: Apache-2.0
// Swiglu: down(silu(gate h) * up h) (Shazeer 2020), the channel mixer of most families.
#pragma once

#include <utility>
#include <vector>

#include "model/layers/mixer.h"

namespace lintel {

class Swiglu final : public Mixer {
 public:
  // gate_up: [2 F, E], gate above up; down: [E, F].
  Swiglu(Dense gate_up, Dense down) : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  void step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const override;
  std::vector<const Dense*> products() const override { return {&gate_up_, &down_}; }

 private:
  const Dense gate_up_;
  const Dense down_;
};

}  // namespace lintel
