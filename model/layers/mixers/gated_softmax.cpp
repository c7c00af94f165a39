// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/gated_softmax.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "model/layers/attention/common/softmax_kernels.h"
#include "model/layers/attention/common/softmax_state.h"
#include "model/ops/mixer_kernels.h"

namespace lintel {

class GatedSoftmax::Layout final : public StateLayout {
 public:
  explicit Layout(const GatedSoftmaxShape& shape)
      : shape_{.n_heads = shape.kv_heads, .d_head = shape.head_width} {}

  std::size_t block_floats() const override { return 0; }
  std::unique_ptr<LayerState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<SoftmaxState>(shape_);
  }
  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return SoftmaxState::bytes_of(shape_, num_tokens);
  }
  std::int64_t tokens_until_full() const override { return kNeverFull; }
  std::size_t rollback_floats(std::size_t /*num_rows*/, std::int64_t /*end*/) const override {
    return 0;
  }
  const SoftmaxShape& softmax() const { return shape_; }

 private:
  const SoftmaxShape shape_;
};

GatedSoftmax::GatedSoftmax(const GatedSoftmaxShape& shape, GatedSoftmaxWeights weights)
    : shape_(shape),
      weights_(std::move(weights)),
      rotary_(shape.rotated, shape.rope_theta),
      layout_(std::make_shared<const Layout>(shape)) {}
GatedSoftmax::~GatedSoftmax() = default;

std::shared_ptr<const StateLayout> GatedSoftmax::layout() const { return layout_; }

std::vector<const Dense*> GatedSoftmax::products() const { return {&*weights_.in, &*weights_.out}; }

// Norms and rotates queries and keys in place, and moves the queries of a head to their places
// without gates: q is [rows, H D] then, and the gates follow.
void GatedSoftmax::prepare(const MixerRows& rows, MatrixView<float> in,
                           MixerScratch& scratch) const {
  const std::size_t width = shape_.head_width;
  const std::size_t floats = rotary_.rotated() + shape_.queries();
  if (scratch.floats.size() < floats) scratch.floats.resize(floats);
  const std::span<float> turns(scratch.floats.data(), rotary_.rotated());
  const std::span<float> gates(turns.data() + turns.size(), shape_.queries());
  const auto norm = [&](float* heads, std::size_t count, const Matrix& gain) {
    if (gain.values().empty()) return;
    const MatrixView<float> view(heads, count, width, width);
    rms_norm(view, gain.values(), weights_.norm_eps, view);
  };
  for (std::size_t r = 0; r < rows.count(); ++r) {
    rotary_.list_turns(rows.positions[r], turns);
    float* const q = in.row(r).data();
    float* k = q + shape_.queries();
    if (shape_.has_gate) {
      for (std::size_t h = 0; h < shape_.heads; ++h) {
        std::copy_n(q + (2 * h + 1) * width, width, gates.data() + h * width);
        std::copy_n(q + 2 * h * width, width, q + h * width);
      }
      std::ranges::copy(gates, k);
      k += shape_.queries();
    }
    norm(q, shape_.heads, weights_.query_norm);
    norm(k, shape_.kv_heads, weights_.key_norm);
    for (std::size_t h = 0; h < shape_.heads; ++h) Rotary::turn(turns, q + h * width);
    for (std::size_t h = 0; h < shape_.kv_heads; ++h) Rotary::turn(turns, k + h * width);
  }
}

// Queries of one sequence at consecutive positions. Those of the heads that share keys are
// attended one after the other: member g of each group, [rows, HKV D], reads the same pages.
void GatedSoftmax::attend(const SoftmaxState& state, std::size_t first_position,
                          MatrixView<const float> q, MatrixView<float> out,
                          MixerScratch& scratch) const {
  const SoftmaxShape& softmax = layout_->softmax();
  const History& history = state.history();
  const std::size_t width = shape_.head_width;
  const std::size_t keys = shape_.keys();
  const std::size_t members = shape_.heads / shape_.kv_heads;
  const std::size_t rows = q.rows();
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  const MatrixView<float> scaled = scratch.matrix(8, rows, keys);
  const MatrixView<float> sums = scratch.matrix(9, rows, keys);
  const MatrixView<float> totals = scratch.matrix(10, 2 * rows, shape_.kv_heads);
  float* const max = totals.data();
  float* const sum = max + rows * shape_.kv_heads;
  for (std::size_t g = 0; g < members; ++g) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
        const float* const from = q.row(r).data() + (h * members + g) * width;
        std::transform(from, from + width, scaled.row(r).data() + h * width,
                       [scale](float x) { return x * scale; });
      }
      std::ranges::fill(sums.row(r), 0.0f);
    }
    std::fill(max, sum, softmax_least());
    std::fill_n(sum, rows * shape_.kv_heads, 0.0f);
    const auto rows_from = [&](std::size_t r) {
      return SoftmaxRows{.count = rows - r,
                         .q = scaled.row(r).data(),
                         .max = max + r * shape_.kv_heads,
                         .sum = sum + r * shape_.kv_heads,
                         .out = sums.row(r).data(),
                         .out_stride = sums.stride()};
    };
    // No row sees what the first one does not.
    const std::size_t seen = first_position + 1;
    const std::size_t least = seen > shape_.window ? seen - shape_.window : 0;
    for (std::size_t begin = least / kSoftmaxPage * kSoftmaxPage; begin < history.length();
         begin += kSoftmaxPage) {
      // Rows before `begin` see nothing of the page.
      const std::size_t r = begin > first_position ? begin - first_position : 0;
      softmax_add_page(softmax, rows_from(r), history.page_of(begin),
                       first_position + r + 1 - begin, shape_.window);
    }
    softmax_finish(softmax, rows_from(0));
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
        std::copy_n(sums.row(r).data() + h * width, width,
                    out.row(r).data() + (h * members + g) * width);
      }
    }
  }
}

void GatedSoftmax::step(const MixerRows& rows, MatrixView<float> add_to,
                        MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  const std::size_t queries = shape_.queries();
  const std::size_t keys = shape_.keys();
  const MatrixView<float> in = scratch.matrix(0, count, weights_.in->out_features());
  const MatrixView<float> out = scratch.matrix(1, count, queries);
  rows.apply(*weights_.in, rows.input, rows.normed, in);
  prepare(rows, in, scratch);
  const std::size_t first_key = shape_.has_gate ? 2 * queries : queries;
  for_each_run(rows.states, [&](std::size_t first, std::size_t length) {
    auto& state = static_cast<SoftmaxState&>(*rows.states[first]);
    const std::size_t first_position = state.history().length();
    for (std::size_t r = first; r < first + length; ++r) {
      const float* const k = in.row(r).data() + first_key;
      state.append(k, k + keys);
    }
    attend(state, first_position, in.cols_from(0, queries).rows_from(first, length),
           out.rows_from(first, length), scratch);
  });
  DenseInput& gated = scratch.input(0, weights_.out->weight_type(), count, queries);
  for (std::size_t r = 0; r < count; ++r) {
    if (shape_.has_gate) multiply_sigmoid(in.row(r).subspan(queries, queries), out.row(r));
    gated.assign(r, out.row(r));
  }
  rows.apply(*weights_.out, gated, out, add_to, Dense::Output::kAdd);
}

}  // namespace lintel
