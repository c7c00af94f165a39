// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/gated_linear.h"

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

std::size_t matrix_floats_of(const GatedLinearShape& shape) {
  return shape.heads * shape.feature_width() * shape.sum_width();
}
std::size_t tail_floats_of(const GatedLinearShape& shape) {
  return shape.taps == 0 ? 0 : (shape.taps - 1) * shape.channels();
}

}  // namespace

// Const and shareable between threads; outlives the states that it makes, which hold a reference.
class GatedLinear::Layout final : public RecurrentLayout {
 public:
  // A draft keeps its rows of q, k, v before the convolution, and its decays.
  Layout(const GatedLinearShape& of, GatedLinearWeights packed)
      : RecurrentLayout(matrix_floats_of(of) + tail_floats_of(of),
                        of.channels() + (packed.decay ? packed.decay->out_features() : 0)),
        shape(of),
        weights(std::move(packed)) {}

  std::unique_ptr<LayerState> new_state(std::span<float> block) const override;

  const GatedLinearShape shape;
  const GatedLinearWeights weights;
};

namespace {

// S, then the convolution's tail.
class GatedLinearState final : public RecurrentState {
 public:
  GatedLinearState(std::span<float> block, const GatedLinearShape& shape,
                   const GatedLinearWeights& weights, std::size_t matrix_floats,
                   std::size_t kept_floats)
      : RecurrentState(block, kept_floats),
        shape_(shape),
        weights_(weights),
        matrix_floats_(matrix_floats) {}

  // Tokens of this sequence. channels: [count, C] before the convolution; decays: [count, HKV DK]
  // or without columns; work: [count, C], which is used with a convolution; out: [count, H
  // sum_width()], without rows: none is needed.
  void feed(MatrixView<const float> channels, MatrixView<const float> decays,
            MatrixView<float> work, MatrixView<float> out, StepThreadPool* team) {
    const std::size_t count = channels.rows();
    if (shape_.taps > 0) {
      const std::span<float> tail = block().subspan(matrix_floats_);
      const ShortConvolution convolution{.taps = shape_.taps,
                                         .weight = weights_.convolution.values(),
                                         .bias = weights_.convolution_bias.values()};
      for (std::size_t r = 0; r < count; ++r) {
        short_convolution(convolution, tail, channels.row(r), 0, work.row(r));
      }
    }
    const MatrixView<const float> rows = shape_.taps > 0 ? work : channels;
    split_among(team, shape_.heads, [&](std::size_t begin, std::size_t end, bool) {
      for (std::size_t h = begin; h < end; ++h) feed_head(h, rows, decays, out);
    });
    advance(count);
  }

 protected:
  void feed_again(const float* kept, std::size_t count, std::span<float> /*work*/) override {
    const std::size_t stride = kept_floats();
    const std::size_t channels = shape_.channels();
    Matrix work(shape_.taps > 0 ? count : 0, channels);
    feed({kept, count, channels, stride}, {kept + channels, count, stride - channels, stride},
         work.view(), {}, nullptr);
    zero_memory(work.values());
  }

 private:
  void feed_head(std::size_t h, MatrixView<const float> rows, MatrixView<const float> decays,
                 MatrixView<float> out) {
    const std::size_t width = shape_.feature_width();
    const std::size_t columns = shape_.sum_width();
    const std::size_t kv_head = h / (shape_.heads / shape_.kv_heads);
    const bool has_head_decay = !weights_.head_decay.values().empty();
    float* const s = block().data() + h * width * columns;
    std::array<RecurrenceToken, 32> tokens;
    for (std::size_t first = 0; first < rows.rows(); first += tokens.size()) {
      const std::size_t count = std::min(tokens.size(), rows.rows() - first);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t r = first + i;
        const float* const row = rows.row(r).data();
        const bool has_output = out.rows() > 0;
        tokens[i] = {.decay = decays.cols() == 0 ? nullptr : decays.row(r).data() + kv_head * width,
                     .write = row + shape_.queries() + kv_head * width,
                     .v = row + shape_.queries() + shape_.keys() + kv_head * columns,
                     .q = has_output ? row + h * width : nullptr,
                     .out = has_output ? out.row(r).data() + h * columns : nullptr,
                     .decay_of_all = has_head_decay ? weights_.head_decay.values()[h] : 1.0f};
      }
      feed_recurrence(width, columns, s, std::span(tokens.data(), count));
    }
  }

  const GatedLinearShape& shape_;
  const GatedLinearWeights& weights_;
  const std::size_t matrix_floats_;
};

// u becomes softmax([2 u, -2 u]) of twice as many features.
void hedgehog(std::span<const float> u, std::span<float> features) {
  float largest = 0.0f;
  for (const float x : u) largest = std::max(largest, std::abs(2.0f * x));
  float sum = 0.0f;
  for (std::size_t i = 0; i < features.size(); ++i) {
    const float score = i < u.size() ? 2.0f * u[i] : -2.0f * u[i - u.size()];
    features[i] = std::exp(score - largest);
    sum += features[i];
  }
  for (float& x : features) x /= sum;
}

// phi of one head. x: [DK], W x + b where there is a W, which may be the same as `second`, W2 x +
// b2 of kProduct; phi: [C].
void write_features(HeadFeatures kind, std::span<const float> x, std::span<const float> second,
                    std::span<float> phi) {
  switch (kind) {
    case HeadFeatures::kIdentity:
      std::ranges::copy(x, phi.begin());
      break;
    case HeadFeatures::kRelu:
    case HeadFeatures::kT2r:
      std::ranges::transform(x, phi.begin(), [](float u) { return std::max(u, 0.0f); });
      break;
    case HeadFeatures::kEluPlusOne:
      elu_plus_one(x, phi);
      break;
    case HeadFeatures::kHedgehog:
      hedgehog(x, phi);
      break;
    case HeadFeatures::kProduct:
      std::ranges::transform(x, second, phi.begin(), [](float u, float w) { return u * w; });
      break;
  }
}

// phi of `count` heads of every row. x: [rows, count DK]; phi: [rows, count C].
void map_heads_of(const GatedLinearShape& shape, const GatedLinearWeights::Map& map,
                  std::size_t count, bool sums_to_one, MatrixView<const float> x,
                  MatrixView<float> phi, MixerScratch& scratch) {
  const std::size_t width = shape.key_width;
  const std::size_t rows = x.rows();
  const MatrixView<float> first = scratch.matrix(5, rows * count, width);
  const MatrixView<float> second = scratch.matrix(6, rows * count, width);
  DenseInput& heads = scratch.input(1, WeightType::kF32, rows * count, width);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t h = 0; h < count; ++h) {
      const std::span<const float> head = x.row(r).subspan(h * width, width);
      map.first.has_value() ? heads.assign(r * count + h, head)
                            : void(std::ranges::copy(head, first.row(r * count + h).begin()));
    }
  }
  if (map.first.has_value()) map.first->apply(heads, first);
  if (map.second.has_value()) map.second->apply(heads, second);
  const std::size_t features = shape.feature_width();
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t h = 0; h < count; ++h) {
      const std::span<float> to = phi.row(r).subspan(h * features, features);
      write_features(shape.features, first.row(r * count + h), second.row(r * count + h), to);
      if (!sums_to_one) continue;
      const float sum = std::accumulate(to.begin(), to.end(), 0.0f) + 1e-4f;
      for (float& value : to) value /= sum;
    }
  }
}

}  // namespace

std::unique_ptr<LayerState> GatedLinear::Layout::new_state(std::span<float> block) const {
  assert(block.size() == block_floats());
  return std::make_unique<GatedLinearState>(block, shape, weights, matrix_floats_of(shape),
                                            kept_floats());
}

GatedLinear::GatedLinear(const GatedLinearShape& shape, GatedLinearWeights weights)
    : rotary_(shape.rope_theta > 0.0 ? shape.key_width : 0, shape.rope_theta),
      layout_(std::make_shared<const Layout>(shape, std::move(weights))) {
  assert(shape.taps == 0 || (shape.features == HeadFeatures::kIdentity && !shape.is_normalised));
}
GatedLinear::~GatedLinear() = default;

std::shared_ptr<const StateLayout> GatedLinear::layout() const { return layout_; }

std::vector<const Dense*> GatedLinear::products() const {
  const GatedLinearWeights& weights = layout_->weights;
  std::vector<const Dense*> all;
  for (const std::optional<Dense>* const dense :
       {&weights.in, &weights.query_map.first, &weights.query_map.second, &weights.key_map.first,
        &weights.key_map.second, &weights.decay_rank, &weights.decay, &weights.out}) {
    if (dense->has_value()) all.push_back(&**dense);
  }
  return all;
}

// Turns q and k in place.
void GatedLinear::rotate(const MixerRows& rows, MatrixView<float> in) const {
  const GatedLinearShape& shape = layout_->shape;
  std::vector<float> turns(rotary_.rotated());
  if (turns.empty()) return;
  for (std::size_t r = 0; r < rows.count(); ++r) {
    rotary_.list_turns(rows.positions[r], turns);
    for (std::size_t h = 0; h < shape.heads + shape.kv_heads; ++h) {
      Rotary::turn(turns, in.row(r).data() + h * shape.key_width);
    }
  }
}

// [rows, channels()]: phi of q and k, and v with a one after each head's where Z is summed. A part
// of `in` where nothing changes.
MatrixView<float> GatedLinear::map_heads(MatrixView<float> in, MixerScratch& scratch) const {
  const GatedLinearShape& shape = layout_->shape;
  const bool changes = shape.features != HeadFeatures::kIdentity || shape.sums_query_to_one ||
                       shape.sums_key_to_one || shape.is_normalised;
  if (!changes) return in.cols_from(0, shape.channels());
  const GatedLinearWeights& weights = layout_->weights;
  const std::size_t q_width = shape.heads * shape.key_width;
  const std::size_t k_width = shape.kv_heads * shape.key_width;
  const std::size_t summed = shape.queries() + shape.keys();
  const MatrixView<float> channels = scratch.matrix(1, in.rows(), shape.channels());
  map_heads_of(shape, weights.query_map, shape.heads, shape.sums_query_to_one,
               in.cols_from(0, q_width), channels.cols_from(0, shape.queries()), scratch);
  map_heads_of(shape, weights.key_map, shape.kv_heads, shape.sums_key_to_one,
               in.cols_from(q_width, k_width), channels.cols_from(shape.queries(), shape.keys()),
               scratch);
  for (std::size_t r = 0; r < in.rows(); ++r) {
    for (std::size_t h = 0; h < shape.kv_heads; ++h) {
      float* const to = channels.row(r).data() + summed + h * shape.sum_width();
      std::copy_n(in.row(r).data() + q_width + k_width + h * shape.value_width, shape.value_width,
                  to);
      if (shape.is_normalised) to[shape.value_width] = 1.0f;
    }
  }
  return channels;
}

MatrixView<float> GatedLinear::decays(const MixerRows& rows, MixerScratch& scratch) const {
  const GatedLinearWeights& weights = layout_->weights;
  const std::size_t count = rows.count();
  const MatrixView<float> decays =
      scratch.matrix(2, count, layout_->kept_floats() - layout_->shape.channels());
  if (!weights.decay.has_value()) return decays;
  DenseInput& inner = scratch.input(1, WeightType::kF32, count, weights.decay_rank->out_features());
  const MatrixView<float> ranks = inner.values().rows_from(0, count);
  rows.apply(*weights.decay_rank, rows.exact, rows.normed, ranks);
  inner.prepare(0, count);
  rows.apply(*weights.decay, inner, ranks, decays);
  for (std::size_t r = 0; r < count; ++r) {
    for (float& x : decays.row(r)) {
      const float log_decay = -softplus(-x) / weights.decay_divisor;
      x = std::exp(std::max(log_decay, weights.least_log_decay));
    }
  }
  return decays;
}

// Sums become outputs of the layer's last product, [rows, H DV] in place. in: with the gates.
void GatedLinear::finish(MatrixView<const float> in, MatrixView<float> out) const {
  const GatedLinearShape& shape = layout_->shape;
  const GatedLinearWeights& weights = layout_->weights;
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.feature_width()));
  for (std::size_t r = 0; r < out.rows(); ++r) {
    float* const row = out.row(r).data();
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const float* const sums = row + h * shape.sum_width();
      const float factor =
          shape.is_normalised ? scale / (scale * sums[shape.value_width] + 1e-10f) : scale;
      std::transform(sums, sums + shape.value_width, row + h * shape.value_width,
                     [factor](float x) { return x * factor; });
    }
    const MatrixView<float> heads(row, shape.heads, shape.value_width, shape.value_width);
    rms_norm(heads, weights.norm.values(), weights.norm_eps, heads);
    if (shape.has_gate) {
      multiply_silu(in.row(r).last(shape.outputs()), out.row(r).first(shape.outputs()));
    }
  }
}

void GatedLinear::step(const MixerRows& rows, MatrixView<float> add_to,
                       MixerScratch& scratch) const {
  const GatedLinearShape& shape = layout_->shape;
  const GatedLinearWeights& weights = layout_->weights;
  const std::size_t count = rows.count();
  const MatrixView<float> in = scratch.matrix(0, count, weights.in->out_features());
  rows.apply(*weights.in, rows.input, rows.normed, in);
  rotate(rows, in);
  const MatrixView<float> channels = map_heads(in, scratch);
  const MatrixView<float> decay = decays(rows, scratch);
  const MatrixView<float> work =
      scratch.matrix(3, count, shape.taps > 0 ? shape.channels() : std::size_t{0});
  const MatrixView<float> out = scratch.matrix(4, count, shape.heads * shape.sum_width());

  for_each_run(rows.states, [&](std::size_t first, std::size_t length) {
    auto& state = static_cast<GatedLinearState&>(*rows.states[first]);
    const auto feed = [&](std::size_t from, std::size_t n) {
      if (n == 0) return;
      state.feed(channels.rows_from(from, n), decay.rows_from(from, n), work.rows_from(from, n),
                 out.rows_from(from, n), rows.team);
    };
    const std::size_t staying = state.begin_run(length);
    feed(first, staying);
    for (std::size_t r = first + staying; r < first + length; ++r) {
      float* const kept = state.keep();
      std::ranges::copy(channels.row(r), kept);
      std::ranges::copy(decay.row(r), kept + channels.cols());
    }
    feed(first + staying, length - staying);
  });

  finish(in, out);
  DenseInput& gated = scratch.input(0, weights.out->weight_type(), count, shape.outputs());
  for (std::size_t r = 0; r < count; ++r) gated.assign(r, out.row(r).first(shape.outputs()));
  rows.apply(*weights.out, gated, out.cols_from(0, shape.outputs()), add_to, Dense::Output::kAdd);
}

}  // namespace lintel
