// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/mlp.h"

namespace lintel {

void Mlp::step(const MixerRows& rows, MatrixView<float> add_to, MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  DenseInput& hidden = this->hidden(count, scratch);
  const MatrixView<float> values = hidden.values().rows_from(0, count);
  bool is_prepared = false;
  if (rows.has_adapters()) {  // their outputs are added before the activation
    rows.apply(linear1_, rows.input, rows.normed, values, Dense::Output::kStoreUnfused);
    linear1_.fuse(values);
  } else {
    is_prepared = linear1_.apply_into(rows.input, count, hidden, rows.team);
  }
  rows.enter(StepPart::kOther);
  if (!is_prepared) hidden.prepare(0, count);
  rows.enter(StepPart::kProducts);
  rows.apply(linear2_, hidden, values, add_to.rows_from(0, count), Dense::Output::kAdd);
}

}  // namespace lintel
