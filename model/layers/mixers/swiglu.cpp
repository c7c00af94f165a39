// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/swiglu.h"

#include "model/ops/mixer_kernels.h"

namespace lintel {

const DenseInput& Swiglu::activate(MatrixView<float> both, StepThreadPool* team,
                                   MixerScratch& scratch) const {
  const std::size_t width = down_.in_features();
  DenseInput& hidden = scratch.input(0, down_.weight_type(), both.rows(), width);
  share_rows(team, both.rows(), [&](std::size_t r) {
    const std::span<float> up = both.row(r).subspan(width);
    multiply_silu(both.row(r).first(width), up);
    hidden.assign(r, up);
  });
  return hidden;
}

void Swiglu::apply(const DenseInput& input, MatrixView<float> y, StepThreadPool* team,
                   MixerScratch& scratch) const {
  const MatrixView<float> both = scratch.matrix(0, y.rows(), gate_up_.out_features());
  gate_up_.apply(input, both, Dense::Output::kStore, nullptr, team);
  down_.apply(activate(both, team, scratch), y, Dense::Output::kStore, nullptr, team);
}

void Swiglu::apply(const MixerRows& rows, MatrixView<float> y, Dense::Output output,
                   MixerScratch& scratch) const {
  const std::size_t width = down_.in_features();
  const MatrixView<float> both = scratch.matrix(0, y.rows(), 2 * width);
  rows.apply(gate_up_, rows.input, rows.normed, both);
  const DenseInput& hidden = activate(both, rows.team, scratch);
  rows.apply(down_, hidden, both.cols_from(width, width), y, output);
}

void Swiglu::reserve(std::size_t rows, MixerScratch& scratch) const {
  const std::size_t width = down_.in_features();
  scratch.matrix(0, rows, 2 * width);
  scratch.input(0, down_.weight_type(), rows, width);
}

}  // namespace lintel
