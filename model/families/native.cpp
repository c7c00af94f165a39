// SPDX-License-Identifier: Apache-2.0
// Models of our own format, docs/model_format.md: their tensors become a Decoder.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "model/core/errors.h"
#include "model/families/family.h"
#include "model/families/tensor_reader.h"
#include "model/formats/weights.h"
#include "model/layers/attention/attention.h"
#include "model/layers/mixers/attention_mixer.h"
#include "model/layers/mixers/mlp.h"
#include "model/lora/adapter.h"

namespace lintel {
namespace native {
namespace {

class Builder {
 public:
  Builder(const ModelConfig& config, const WeightSource& tensors, const Dense::Options& options)
      : config_(config),
        dims_(config.dims()),
        width_(static_cast<std::size_t>(config.d_model)),
        options_(options),
        source_(tensors),
        tensors_(tensors) {}

  std::unique_ptr<const Decoder> build() {
    auto decoder = std::make_unique<Decoder>();
    decoder->weight_type = options_.weight_type;
    decoder->width = width_;
    // The head is f32 in every model: it is small, and likelihood is most sensitive to it. Always
    // by our own kernels, so that an int8 model has the same bits with both.
    const auto last_width = static_cast<std::size_t>(config_.last_width());
    decoder->head = linear("predictor", static_cast<std::size_t>(config_.num_outputs()), last_width,
                           {.kernels = KernelChoice::kOwn});
    decoder->embedding =
        tensors_.embedding("value_embedding.weight", static_cast<std::size_t>(config_.vocab_size),
                           static_cast<std::size_t>(value_width(config_)));
    decoder->positions = positions();
    decoder->has_positions_in_layers = config_.position_injection == PositionInjection::kEveryLayer;
    if (config_.step_embedding) {
      decoder->layer_rows = tensors_.matrix("step_embedding.weight",
                                            static_cast<std::size_t>(config_.n_layers), width_);
    }
    for (int i = 0; i < config_.num_layer_weights(); ++i) decoder->layers.push_back(layer(i));
    decoder->order = config_.layer_weights;
    decoder->has_norms_after = config_.norm_placement == NormPlacement::kPost;
    decoder->residual = config_.residual;
    if (config_.final_norm) decoder->final_norm = norm("transformer.norm", last_width);
    decoder->num_parameters = count_parameters(config_);
    decoder->modules = adaptable_modules(config_);
    return decoder;
  }

 private:
  Dense linear(const std::string& name, std::size_t rows, std::size_t cols,
               const Dense::Options& options) {
    return tensors_.dense({{name + ".weight", rows, name + ".bias"}}, cols, options);
  }

  RowNorm norm(const std::string& name, std::size_t width) {
    return {.gain = tensors_.vector(name + ".weight", width),
            .bias = tensors_.vector(name + ".bias", width),
            .eps = static_cast<float>(config_.layer_norm_eps)};
  }

  PositionEmbedding positions() {
    const std::string name = "pos_embedding.pe";
    const auto width = static_cast<std::size_t>(position_width(config_));
    if (width == 0) return {};
    if (tensors_.has(name)) {
      Matrix table(static_cast<std::size_t>(config_.max_length), width);
      read_f32(source_, tensors_.take(name), table.values());
      return PositionEmbedding(std::move(table));
    }
    Matrix table = computed_positions(config_);
    return table.values().empty() ? PositionEmbedding(width) : PositionEmbedding(std::move(table));
  }

  std::vector<Matrix> own_tensors_of(const AttentionConfig& attention, const std::string& prefix) {
    std::vector<Matrix> all;
    for (const OwnTensor& own : own_tensors(attention, dims_)) {
      TensorSpec spec{prefix + own.name, own.shape};
      if (own.refuse != nullptr) {
        spec.refuse = [&](std::span<const float> values) { return own.refuse(values, own); };
      }
      all.push_back(spec.new_matrix());
      read_f32(source_, tensors_.take(spec.name), all.back().values());
      spec.check(all.back().values(), source_.name());
    }
    return all;
  }

  DecoderLayer layer(int weights) {
    const AttentionConfig& attention =
        config_.attention[static_cast<std::size_t>(config_.first_layer_with(weights))];
    const std::string prefix = "transformer.layers." + std::to_string(weights) + ".";
    std::vector<TensorReader::Part> parts;
    std::vector<std::size_t> widths;
    for (const Projection& p : attention.kind().projections(attention, dims_)) {
      if (!p.is_read) continue;
      const std::string name = prefix + "attention." + p.name;
      widths.push_back(static_cast<std::size_t>(p.width));
      parts.push_back({name + ".weight", widths.back(), p.has_bias ? name + ".bias" : ""});
    }
    const auto out_inputs = static_cast<std::size_t>(out_width(attention, dims_));
    const auto hidden = static_cast<std::size_t>(config_.d_ff);
    Dense::Options activated = options_;
    const bool is_relu = config_.activation == Activation::kRelu;
    activated.fused = is_relu ? Dense::Fused::kRelu : Dense::Fused::kGelu;
    // This order gives them the numbers of adaptable_modules().
    Dense projections = tensors_.dense(parts, width_, options_);
    Dense out = linear(prefix + "attention.out_projection", width_, out_inputs, options_);
    Dense linear1 = linear(prefix + "linear1", hidden, width_, activated);
    Dense linear2 = linear(prefix + "linear2", width_, hidden, options_);
    const std::vector<Matrix> own =
        own_tensors_of(attention, prefix + "attention.inner_attention.");
    // The output of a rectifier is not negative.
    const auto range = is_relu ? DenseInput::Range::kNonNegative : DenseInput::Range::kSigned;
    return {.token_norm = norm(prefix + "norm1", width_),
            .token_mixer = std::make_unique<AttentionMixer>(
                std::move(projections), std::move(widths),
                make_attention({.config = attention, .dims = dims_, .own = own}), std::move(out)),
            .channel_norm = norm(prefix + "norm2", width_),
            .channel_mixer = std::make_unique<Mlp>(std::move(linear1), std::move(linear2), range)};
  }

  const ModelConfig& config_;
  const LayerDims dims_;
  const std::size_t width_;  // E
  const Dense::Options options_;
  const WeightSource& source_;
  TensorReader tensors_;
};

// The tensors of another model, but those that attention replaces: they are drawn when they are
// read, and the last of them stays.
class DrawnTensors final : public WeightSource {
 public:
  DrawnTensors(const AttentionSpec& spec, const ModelConfig& before, const WeightSource& source)
      : source_(source) {
    const ModelConfig after = with_attention(before, spec);
    for (int i = 0; i < after.num_layer_weights(); ++i) replace(spec, i, before, after);
    for (const TensorSpec& wanted : list_tensors(after)) {
      const TensorInfo* const found = source.find(wanted.name);
      if (draws_.contains(wanted.name)) {
        tensors_.push_back({.name = wanted.name, .shape = wanted.shape, .file = kDrawn});
      } else if (found != nullptr) {
        tensors_.push_back(*found);
      }
    }
    for (const TensorInfo& tensor : tensors_) places_.emplace(tensor.name, &tensor);
  }

  const std::string& name() const override { return source_.name(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : found->second;
  }
  void read(const TensorInfo& tensor, std::uint64_t first,
            std::span<std::byte> out) const override {
    if (tensor.file != kDrawn) return source_.read(tensor, first, out);
    const std::lock_guard lock(mutex_);
    if (last_ != tensor.name) {
      values_.assign(static_cast<std::size_t>(tensor.num_elements()), 0.0f);
      draws_.at(tensor.name)(values_);
      last_ = tensor.name;
    }
    std::memcpy(out.data(), std::as_bytes(std::span(values_)).data() + first, out.size());
  }
  void read_all(const std::function<void(std::span<const std::byte>)>& take) const override {
    source_.read_all(take);
  }

 private:
  static constexpr std::size_t kDrawn = SIZE_MAX;  // in place of a file
  using Draw = std::function<void(std::span<float>)>;

  // N(0, 1/E) without a bias.
  void draw_linear(const std::string& name, std::size_t inputs, std::uint64_t seed, int layer,
                   std::size_t number) {
    draws_[name + ".weight"] = [=](std::span<float> values) {
      const OwnTensor normal{.name = "", .shape = {1}};
      draw_tensor(values, normal, ~seed, layer, number);
      const float scale = 1.0f / std::sqrt(static_cast<float>(inputs));
      for (float& value : values) value *= scale;
    };
    draws_[name + ".bias"] = [](std::span<float>) {};
  }

  // Tensors keep their values where the new kind has one of the same name and shape.
  void replace(const AttentionSpec& spec, int layer, const ModelConfig& before,
               const ModelConfig& after) {
    const auto first = static_cast<std::size_t>(after.first_layer_with(layer));
    const AttentionConfig& old = before.attention[first];
    const AttentionConfig& now = after.attention[first];
    const LayerDims dims = after.dims();
    const std::uint64_t seed = spec.seed.value_or(0);
    const std::string prefix = "transformer.layers." + std::to_string(layer) + ".attention.";
    std::size_t number = 0;
    const std::vector<Projection> had = old.kind().projections(old, dims);
    for (const Projection& p : now.kind().projections(now, dims)) {
      const auto same = std::ranges::find(had, p.name, &Projection::name);
      if (same == had.end() || same->width != p.width || same->has_bias != p.has_bias) {
        draw_linear(prefix + p.name, static_cast<std::size_t>(dims.d_model), seed, layer, number);
      }
      ++number;
    }
    const int width = out_width(now, dims);
    if (width != out_width(old, dims)) {
      draw_linear(prefix + "out_projection", static_cast<std::size_t>(width), seed, layer, number);
    }
    number = 0;
    const std::vector<OwnTensor> old_own = own_tensors(old, dims);
    for (const OwnTensor& own : own_tensors(now, dims)) {
      const auto same = std::ranges::find(old_own, own.name, &OwnTensor::name);
      if (same == old_own.end() || same->shape != own.shape || spec.seed.has_value()) {
        draws_[prefix + "inner_attention." + own.name] = [=](std::span<float> values) {
          draw_tensor(values, own, seed, layer, number);
        };
      }
      ++number;
    }
  }

  const WeightSource& source_;
  std::map<std::string, Draw, std::less<>> draws_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, const TensorInfo*, std::less<>> places_;
  mutable std::mutex mutex_;
  mutable std::string last_;           // drawn
  mutable std::vector<float> values_;  // of it
};

}  // namespace
}  // namespace native

std::unique_ptr<const Decoder> make_native(const ModelConfig& config, const WeightSource& tensors,
                                           const Dense::Options& options) {
  return native::Builder(config, tensors, options).build();
}

std::unique_ptr<const WeightSource> replace_attention(const AttentionSpec& spec,
                                                      const ModelConfig& config,
                                                      const WeightSource& tensors) {
  return std::make_unique<const native::DrawnTensors>(spec, config, tensors);
}

void check_weight_type(const ModelConfig& config, WeightType type) {
  if (input_type_of(type) == WeightType::kInt8Groups) {
    throw ModelError(
        "weight type " + std::string(to_string(type)) +
        ": of checkpoints with a model_type alone; here f32, bf16 and int8 are served");
  }
  if (type != WeightType::kInt8) return;
  constexpr auto kMost = static_cast<std::int64_t>(Dense::kMostInt8Inputs);
  for (const TensorSpec& spec : list_tensors(config)) {
    if (!spec.is_projection || spec.shape.size() != 2 || spec.shape[1] <= kMost) continue;
    throw ModelError(spec.name + ": has " + std::to_string(spec.shape[1]) +
                     " inputs, weight type int8 takes at most " + std::to_string(kMost));
  }
}

}  // namespace lintel
