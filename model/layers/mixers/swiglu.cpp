// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/swiglu.h"

#include "model/ops/mixer_kernels.h"

namespace lintel {

void Swiglu::step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const {
  const std::size_t width = down_.in_features();
  const MatrixView<float> both = scratch.matrix(0, rows.count(), 2 * width);
  gate_up_.apply(rows.input, both, Dense::Output::kStore, nullptr, rows.team);
  DenseInput& hidden = scratch.input(0, down_.weight_type(), rows.count(), width);
  for (std::size_t r = 0; r < rows.count(); ++r) {
    const std::span<float> up = both.row(r).subspan(width);
    multiply_silu(both.row(r).first(width), up);
    hidden.assign(r, up);
  }
  down_.apply(hidden, add_to, Dense::Output::kAdd, nullptr, rows.team);
}

}  // namespace lintel
