// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/swiglu.h"

#include "model/ops/mixer_kernels.h"

namespace lintel {

void Swiglu::apply(const DenseInput& input, MatrixView<float> y, Dense::Output output,
                   StepThreadPool* team, MixerScratch& scratch) const {
  const std::size_t width = down_.in_features();
  const MatrixView<float> both = scratch.matrix(0, y.rows(), 2 * width);
  gate_up_.apply(input, both, Dense::Output::kStore, nullptr, team);
  DenseInput& hidden = scratch.input(0, down_.weight_type(), y.rows(), width);
  for (std::size_t r = 0; r < y.rows(); ++r) {
    const std::span<float> up = both.row(r).subspan(width);
    multiply_silu(both.row(r).first(width), up);
    hidden.assign(r, up);
  }
  down_.apply(hidden, y, output, nullptr, team);
}

void Swiglu::reserve(std::size_t rows, MixerScratch& scratch) const {
  const std::size_t width = down_.in_features();
  scratch.matrix(0, rows, 2 * width);
  scratch.input(0, down_.weight_type(), rows, width);
}

void Swiglu::step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const {
  apply(rows.input, add_to.rows_from(0, rows.count()), Dense::Output::kAdd, rows.team, scratch);
}

}  // namespace lintel
