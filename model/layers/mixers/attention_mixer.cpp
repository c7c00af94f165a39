// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/attention_mixer.h"

#include <algorithm>
#include <span>

namespace lintel {

// A sequence at a time, whose floats are prepared for the next product while they are in the first
// cache, and always in the same place: with rows of their own they would go to the second cache and
// come back. scratch.views: the projections of all rows.
void AttentionMixer::attend_into(const MixerRows& rows, DenseInput& out,
                                 MixerScratch& scratch) const {
  for_each_run(rows.states, [&](std::size_t begin, std::size_t count) {
    scratch.run_views.clear();
    for (const auto& view : scratch.views) {
      scratch.run_views.push_back(view.rows_from(begin, count));
    }
    const MatrixView<float> values = out.values().rows_from(0, count);
    attention_->step(rows.states.subspan(begin, count), scratch.run_views, values,
                     scratch.attention);
    for (std::size_t r = 0; r < count; ++r) out.assign(begin + r, values.row(r));
  });
}

void AttentionMixer::reserve(std::size_t rows, MixerScratch& scratch) const {
  scratch.matrix(0, rows, projections_.out_features());
  scratch.input(1, out_.weight_type(), rows, out_.in_features());
  scratch.views.reserve(input_widths_.size());
  scratch.run_views.reserve(input_widths_.size());
}

void AttentionMixer::step(const MixerRows& rows, MatrixView<float> add_to,
                          MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  if (rows.prefetch != nullptr) {
    // Prefetches the memory of the states that attention will read once it has its queries.
    for_each_run(rows.states, [&](std::size_t first, std::size_t /*count*/) {
      rows.prefetch->add(rows.states[first]->read_next());
    });
  }
  const MatrixView<float> all = scratch.matrix(0, count, projections_.out_features());
  rows.apply(projections_, rows.input, rows.normed, all);
  scratch.views.clear();
  std::size_t first = 0;
  for (const std::size_t width : input_widths_) {
    scratch.views.push_back(all.cols_from(first, width));
    first += width;
  }

  rows.enter(StepPart::kAttention);
  DenseInput& attended = scratch.input(1, out_.weight_type(), count, out_.in_features());
  const MatrixView<float> values = attended.values().rows_from(0, count);
  // Adapters read the floats, and so does who moves rows.
  const bool is_prepared = attended.type() != WeightType::kF32 && !rows.states.empty() &&
                           !rows.has_adapters() && rows.kept == nullptr;
  if (rows.states.empty()) {
    attention_->full_pass(scratch.views, values, scratch.attention);
  } else if (is_prepared) {
    attend_into(rows, attended, scratch);
  } else {
    attention_->step(rows.states, scratch.views, values, scratch.attention);
  }

  rows.enter(StepPart::kOther);
  std::size_t left = count;
  if (rows.kept != nullptr) {
    left = rows.kept->rows.size();
    if (left == 0) return;
    for (std::size_t i = 0; i < left; ++i) {
      const std::size_t from = rows.kept->rows[i];
      if (from != i) std::ranges::copy(values.row(from), values.row(i).begin());
    }
  }
  if (!is_prepared) attended.prepare(0, left);
  rows.enter(StepPart::kProducts);
  rows.apply(rows.kept != nullptr ? &rows.kept->adapted : rows.adapted, out_, attended,
             values.rows_from(0, left), add_to.rows_from(0, left), Dense::Output::kAdd);
}

}  // namespace lintel
