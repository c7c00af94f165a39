// SPDX-License-Identifier: Apache-2.0
#include "model/layer.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/core/kernels.h"
#include "model/formats/weights.h"

namespace lintel {

Embedding::Embedding(const ModelConfig& config, std::span<const float> values,
                     std::span<const float> positions)
    : concat_(config.embedding == EmbeddingKind::kValueConcatPosition),
      value_width_(static_cast<std::size_t>(value_width(config))),
      position_width_(static_cast<std::size_t>(position_width(config))),
      values_(values.begin(), values.end()),
      positions_(positions.begin(), positions.end()) {
  assert(values_.size() == static_cast<std::size_t>(config.vocab_size) * value_width_);
  if (!positions_.empty()) return;
  frequencies_.resize((position_width_ + 1) / 2);
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / position_width_);
  }
}

// pe[p, 2i] = sin(p * 10000^(-2i/d)), pe[p, 2i+1] = cos of the same. The angle is a double: a float
// could not tell positions beyond 2^24 apart.
template <typename Body>
void Embedding::for_each_part(std::int64_t position, Body&& body) const {
  if (!positions_.empty()) {
    const float* const row =
        positions_.data() + static_cast<std::size_t>(position) * position_width_;
    for (std::size_t i = 0; i < position_width_; ++i) body(i, row[i]);
    return;
  }
  for (std::size_t i = 0; i < position_width_; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i / 2];
    body(i, static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle)));
  }
}

void Embedding::embed(std::int32_t token, std::int64_t position, std::span<float> out) const {
  assert(token >= 0 && position >= 0);
  const float* value = values_.data() + static_cast<std::size_t>(token) * value_width_;
  assert(value + value_width_ <= values_.data() + values_.size());
  std::copy(value, value + value_width_, out.begin());
  if (concat_) return position_row(position, out.subspan(value_width_));
  for_each_part(position, [&](std::size_t i, float part) { out[i] += part; });
}

void Embedding::position_row(std::int64_t position, std::span<float> out) const {
  assert(out.size() == position_width_);
  for_each_part(position, [&](std::size_t i, float part) { out[i] = part; });
}

namespace {

// Projections of one input, one below the other: one product instead of several.
Dense pack_stacked(std::span<const LinearWeights* const> parts, const Dense::Options& options) {
  std::vector<float> weight;
  std::vector<float> bias;
  for (const LinearWeights* part : parts) {
    weight.insert(weight.end(), part->weight.values().begin(), part->weight.values().end());
    bias.insert(bias.end(), part->bias.values().begin(), part->bias.values().end());
    bias.resize(weight.size() / part->weight.cols());  // zeros where there is no bias
  }
  return Dense(weight, bias, parts[0]->weight.cols(), bias.size(), options);
}

}  // namespace

void check_weight_type(const ModelConfig& config, WeightType type) {
  if (type != WeightType::kInt8) return;
  constexpr auto kMost = static_cast<std::int64_t>(Dense::kMostInt8Inputs);
  for (const TensorSpec& spec : list_tensors(config)) {
    if (!spec.is_projection || spec.shape.size() != 2 || spec.shape[1] <= kMost) continue;
    throw ModelError(spec.name + ": has " + std::to_string(spec.shape[1]) +
                     " inputs, weight type int8 takes at most " + std::to_string(kMost));
  }
}

Dense pack(const LinearWeights& linear, const Dense::Options& options) {
  return Dense(linear.weight.values(), linear.bias.values(), linear.weight.cols(),
               linear.weight.rows(), options);
}

Norm::Norm(NormWeights weights, double layer_norm_eps)
    : gain(std::move(weights.weight)),
      bias(std::move(weights.bias)),
      eps(static_cast<float>(layer_norm_eps)) {}

void Norm::apply(MatrixView<const float> x, MatrixView<float> y) const {
  layer_norm(x, gain.values(), bias.values(), eps, y);
}

void Norm::apply(MatrixView<const float> x, DenseInput& y, bool keeps_values) const {
  constexpr std::size_t kAtOnce = 4;
  const bool in_place = keeps_values || y.type() == WeightType::kF32;
  for (std::size_t r = 0; r < x.rows(); r += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, x.rows() - r);
    // Always the same few rows of floats: written all over memory they would cost more than the
    // norm.
    const MatrixView<float> values = y.values().rows_from(in_place ? r : 0, count);
    apply(x.rows_from(r, count), values);
    if (in_place) {
      y.prepare(r, count);
    } else {
      for (std::size_t i = 0; i < count; ++i) y.assign(r + i, values.row(i));
    }
  }
}

Layer make_layer(const ModelConfig& config, const AttentionConfig& attention, LayerWeights& weights,
                 const Dense::Options& options) {
  Dense::Options plain = options;
  plain.fused = Dense::Fused::kNone;
  Dense::Options activated = options;
  activated.fused =
      config.activation == Activation::kRelu ? Dense::Fused::kRelu : Dense::Fused::kGelu;
  std::vector<const LinearWeights*> read;
  std::vector<std::size_t> widths;
  std::size_t i = 0;
  for (const Projection& p : attention.kind().projections(attention, config.dims())) {
    const LinearWeights& projection = weights.projections[i++];
    if (!p.is_read) continue;
    read.push_back(&projection);
    widths.push_back(static_cast<std::size_t>(p.width));
  }
  return {.projections = pack_stacked(read, plain),
          .input_widths = std::move(widths),
          .out = pack(weights.out, plain),
          .linear1 = pack(weights.linear1, activated),
          .linear2 = pack(weights.linear2, plain),
          .norm1 = Norm(std::move(weights.norm1), config.layer_norm_eps),
          .norm2 = Norm(std::move(weights.norm2), config.layer_norm_eps)};
}

std::vector<const Dense*> TransformerParts::products() const {
  if (decoder != nullptr) return decoder->products();
  std::vector<const Dense*> all;
  for (const Layer& layer : layers) {
    all.insert(all.end(), {&layer.projections, &layer.out, &layer.linear1, &layer.linear2});
  }
  return all;
}

std::string kernels_of(std::span<const Dense* const> products) {
  std::vector<std::pair<std::string, int>> found;  // in order, and how many products have them
  for (const Dense* dense : products) {
    const std::string kernels = dense->kernels();
    const auto same = std::ranges::find(found, kernels, &std::pair<std::string, int>::first);
    if (same == found.end()) {
      found.emplace_back(kernels, 1);
    } else {
      ++same->second;
    }
  }
  const std::size_t total = products.size();
  if (found.size() == 1) return found.front().first;
  std::string all;
  for (const auto& [kernels, count] : found) {
    all += (all.empty() ? "" : "; ") + std::to_string(count) + " of " + std::to_string(total) +
           " products " + kernels;
  }
  return all;
}

}  // namespace lintel
