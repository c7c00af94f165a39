// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/gated_delta.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

#include "model/layers/attention/common/sum_kernels.h"
#include "model/layers/recurrent_state.h"
#include "model/ops/mixer_kernels.h"

namespace lintel {
namespace {

std::size_t matrix_floats_of(const GatedDeltaShape& shape) {
  return shape.value_heads * shape.key_width * shape.value_width;
}

}  // namespace

// Const and shareable between threads; outlives the states that it makes, which hold a reference.
class GatedDelta::Layout final : public RecurrentLayout {
 public:
  // A draft keeps its rows of q, k, v before the convolution, and its rates.
  Layout(const GatedDeltaShape& of, GatedDeltaWeights packed)
      : RecurrentLayout(matrix_floats_of(of) + (of.taps - 1) * of.channels(),
                        of.channels() + of.rates()),
        shape(of),
        weights(std::move(packed)) {}

  std::unique_ptr<LayerState> new_state(std::span<float> block) const override;

  const GatedDeltaShape shape;
  const GatedDeltaWeights weights;
};

namespace {

// S, then the convolution's tail.
class GatedDeltaState final : public RecurrentState {
 public:
  GatedDeltaState(std::span<float> block, const GatedDeltaShape& shape,
                  const GatedDeltaWeights& weights, std::size_t matrix_floats,
                  std::size_t kept_floats)
      : RecurrentState(block, kept_floats),
        shape_(shape),
        weights_(weights),
        matrix_floats_(matrix_floats) {}

  // Tokens of this sequence. channels: [count, C] before the convolution; rates: [count, rates()];
  // work: [count, C]; out: [count, HV DV], null: none is needed.
  void feed(MatrixView<const float> channels, MatrixView<const float> rates, MatrixView<float> work,
            float* out, std::size_t out_stride, StepThreadPool* team) {
    const std::size_t count = channels.rows();
    const std::span<float> tail = block().subspan(matrix_floats_);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.key_width));
    const ShortConvolution convolution{
        .taps = shape_.taps,
        .weight = weights_.convolution.values(),
        .bias = weights_.convolution_bias.values(),
        .has_activation = shape_.key_activation == KeyActivation::kSilu};
    // Heads of q, of k and of v.
    split_among(team, 2 * shape_.key_heads + shape_.value_heads,
                [&](std::size_t begin, std::size_t end, bool) {
                  for (std::size_t u = begin; u < end; ++u) {
                    convolve_head(u, convolution, scale, tail, channels, work);
                  }
                });
    split_among(team, shape_.value_heads, [&](std::size_t begin, std::size_t end, bool) {
      for (std::size_t h = begin; h < end; ++h) feed_head(h, rates, work, out, out_stride);
    });
    advance(count);
  }

 protected:
  void feed_again(const float* kept, std::size_t count, std::span<float> /*work*/) override {
    const std::size_t stride = kept_floats();
    const std::size_t channels = shape_.channels();
    Matrix work(count, channels);
    feed({kept, count, channels, stride}, {kept + channels, count, shape_.rates(), stride},
         work.view(), nullptr, 0, nullptr);
    zero_memory(work.values());
  }

 private:
  // All rows of a head: `number` counts those of q, of k and of v.
  void convolve_head(std::size_t number, const ShortConvolution& convolution, float scale,
                     std::span<float> tail, MatrixView<const float> channels,
                     MatrixView<float> work) const {
    const bool is_key = number < 2 * shape_.key_heads;
    const std::size_t width = is_key ? shape_.key_width : shape_.value_width;
    const std::size_t first =
        is_key ? number * width
               : 2 * shape_.keys() + (number - 2 * shape_.key_heads) * shape_.value_width;
    for (std::size_t r = 0; r < channels.rows(); ++r) {
      const std::span<float> head = work.row(r).subspan(first, width);
      short_convolution(convolution, tail, channels.row(r), first, head);
      if (!convolution.has_activation) activate(head, is_key);
      if (is_key) norm(head, number < shape_.key_heads ? scale : 1.0f);
    }
  }

  // Applies the activation of q and k where it differs from that of v.
  void activate(std::span<float> head, bool is_key) const {
    if (!is_key) return silu(head);
    if (shape_.key_activation == KeyActivation::kEluPlusOne) elu_plus_one(head, head);
    if (shape_.key_activation == KeyActivation::kRelu) {
      for (float& x : head) x = std::max(x, 0.0f);
    }
  }

  // One head's q or k, then times `scale`.
  void norm(std::span<float> head, float scale) const {
    if (shape_.key_norm == KeyNorm::kLength) {
      return to_unit_length(head, UnitLength::kAddInside, scale);
    }
    const float factor = scale / std::accumulate(head.begin(), head.end(), 0.0f);
    for (float& x : head) x *= factor;
  }

  float decay_of(std::size_t h, float a) const {
    return std::exp(weights_.decay.values()[h] * softplus(a + weights_.decay_bias.values()[h]));
  }

  void feed_head(std::size_t h, MatrixView<const float> rates, MatrixView<const float> rows,
                 float* out, std::size_t out_stride) {
    const std::size_t key = shape_.key_head_of(h) * shape_.key_width;
    const std::size_t heads = shape_.value_heads;
    float* const s = block().data() + h * shape_.key_width * shape_.value_width;
    std::array<RecurrenceToken, 32> tokens;
    for (std::size_t first = 0; first < rows.rows(); first += tokens.size()) {
      const std::size_t count = std::min(tokens.size(), rows.rows() - first);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t r = first + i;
        const float* const row = rows.row(r).data();
        const float rate = shape_.has_rate ? sigmoid(rates.row(r)[h]) : 1.0f;
        const float decay = shape_.has_decay ? decay_of(h, rates.row(r).last(heads)[h]) : 1.0f;
        tokens[i] = {
            .read = row + shape_.keys() + key,
            .write = row + shape_.keys() + key,
            .v = row + 2 * shape_.keys() + h * shape_.value_width,
            .q = out == nullptr ? nullptr : row + key,
            .out = out == nullptr ? nullptr : out + r * out_stride + h * shape_.value_width,
            .decay_of_all = decay,
            .read_scale = decay,
            .beta = shape_.most_rate * rate};
      }
      feed_recurrence(shape_.key_width, shape_.value_width, s, std::span(tokens.data(), count));
    }
  }

  const GatedDeltaShape& shape_;
  const GatedDeltaWeights& weights_;
  const std::size_t matrix_floats_;
};

}  // namespace

std::unique_ptr<LayerState> GatedDelta::Layout::new_state(std::span<float> block) const {
  assert(block.size() == block_floats());
  return std::make_unique<GatedDeltaState>(block, shape, weights, matrix_floats_of(shape),
                                           kept_floats());
}

GatedDelta::GatedDelta(const GatedDeltaShape& shape, GatedDeltaWeights weights)
    : layout_(std::make_shared<const Layout>(shape, std::move(weights))) {}
GatedDelta::~GatedDelta() = default;

std::shared_ptr<const StateLayout> GatedDelta::layout() const { return layout_; }

std::vector<const Dense*> GatedDelta::products() const {
  std::vector<const Dense*> all = {&*layout_->weights.in};
  if (layout_->weights.rate.has_value()) all.push_back(&*layout_->weights.rate);
  all.push_back(&*layout_->weights.out);
  return all;
}

void GatedDelta::step(const MixerRows& rows, MatrixView<float> add_to,
                      MixerScratch& scratch) const {
  const GatedDeltaShape& shape = layout_->shape;
  const GatedDeltaWeights& weights = layout_->weights;
  const std::size_t count = rows.count();
  const std::size_t channels = shape.channels();
  const std::size_t values = shape.values();
  const MatrixView<float> in = scratch.matrix(0, count, weights.in->out_features());
  const MatrixView<float> rates = scratch.matrix(1, count, shape.rates());
  const MatrixView<float> work = scratch.matrix(2, count, channels);
  const MatrixView<float> out = scratch.matrix(3, count, values);
  const bool has_rates = weights.rate.has_value();
  const Dense::Multiplication products[] = {
      {&*weights.in, &rows.input, in}, {has_rates ? &*weights.rate : nullptr, &rows.exact, rates}};
  const MatrixView<const float> read[] = {rows.normed, rows.normed};
  rows.apply_all(std::span(products).first(has_rates ? 2 : 1),
                 std::span(read).first(has_rates ? 2 : 1));

  share_runs(rows, scratch, [&](std::size_t first, std::size_t length, StepThreadPool* team) {
    auto& state = static_cast<GatedDeltaState&>(*rows.states[first]);
    const auto feed = [&](std::size_t from, std::size_t n) {
      if (n == 0) return;
      state.feed(in.cols_from(0, channels).rows_from(from, n), rates.rows_from(from, n),
                 work.rows_from(from, n), out.row(from).data(), out.stride(), team);
    };
    const std::size_t staying = state.begin_run(length);
    feed(first, staying);
    for (std::size_t r = first + staying; r < first + length; ++r) {
      float* const kept = state.keep();
      std::ranges::copy(in.row(r).first(channels), kept);
      std::ranges::copy(rates.row(r), kept + channels);
    }
    feed(first + staying, length - staying);
  });

  DenseInput& gated = scratch.input(0, weights.out->weight_type(), count, values);
  share_rows(rows.team, count, [&](std::size_t r) {
    const MatrixView<float> heads(out.row(r).data(), shape.value_heads, shape.value_width,
                                  shape.value_width);
    rms_norm(heads, weights.norm.values(), weights.norm_eps, heads);
    if (shape.has_gate) multiply_silu(in.row(r).subspan(channels), out.row(r));
    gated.assign(r, out.row(r));
  });
  rows.apply(*weights.out, gated, out, add_to, Dense::Output::kAdd);
}

}  // namespace lintel
