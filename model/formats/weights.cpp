// SPDX-License-Identifier: Apache-2.0
#include "model/formats/weights.h"

#include <cassert>
#include <cmath>
#include <set>
#include <utility>

#include "model/core/errors.h"
#include "model/formats/safetensors.h"

namespace lintel {

void sinusoidal_position(std::int64_t position, std::span<float> out) {
  assert(out.size() % 2 == 0);
  const double d = static_cast<double>(out.size());
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / d);
    const double angle = static_cast<double>(position) * frequency;
    out[i] = static_cast<float>(std::sin(angle));
    out[i + 1] = static_cast<float>(std::cos(angle));
  }
}

namespace {

// W is ModelWeights or const ModelWeights; Visit takes (const TensorSpec&, Matrix& or const
// Matrix&).
template <typename W, typename Visit>
void visit_tensors(const ModelConfig& config, W& weights, const Visit& visit) {
  const std::int64_t e = config.d_model;
  const std::int64_t f = config.d_ff;
  const LayerDims dims = config.dims();

  const auto linear = [&](const std::string& name, auto& l, std::int64_t out, std::int64_t in,
                          bool has_bias = true) {
    TensorSpec weight{name + ".weight", {out, in}};
    weight.is_projection = &l != &weights.predictor;
    visit(weight, l.weight);
    if (has_bias) visit({name + ".bias", {out}}, l.bias);
  };
  const auto norm = [&](const std::string& name, auto& n, std::int64_t width) {
    visit({name + ".weight", {width}}, n.weight);
    visit({name + ".bias", {width}}, n.bias);
  };

  visit({"value_embedding.weight", {config.vocab_size, value_width(config)}},
        weights.value_embedding);
  if (position_width(config) > 0 && config.max_length > 0) {
    const bool learned = config.position_encoding == PositionEncoding::kLearned;
    visit({"pos_embedding.pe",
           {1, config.max_length, position_width(config)},
           /*optional=*/!learned,
           /*is_parameter=*/learned},
          weights.position_embedding);
  }
  if (config.step_embedding) {
    visit({"step_embedding.weight", {config.n_layers, e}}, weights.step_embedding);
  }
  for (int i = 0; i < config.num_layer_weights(); ++i) {
    auto& layer = weights.layers[i];
    const AttentionConfig& attention = config.attention[config.first_layer_with(i)];
    const std::string prefix = "transformer.layers." + std::to_string(i) + ".";
    std::size_t at = 0;
    for (const Projection& p : attention.kind().projections(attention, dims)) {
      linear(prefix + "attention." + p.name, layer.projections[at++], p.width, e, p.has_bias);
    }
    linear(prefix + "attention.out_projection", layer.out, e, out_width(attention, dims));
    at = 0;
    for (const OwnTensor& own : own_tensors(attention, dims)) {
      const std::size_t number = at++;
      TensorSpec spec{prefix + "attention.inner_attention." + own.name, own.shape};
      spec.is_parameter = own.is_learned;
      spec.is_own = true;
      if (own.refuse != nullptr) {
        spec.refuse = [own](std::span<const float> values) { return own.refuse(values, own); };
      }
      if (own.draw != nullptr) {
        spec.draw = [own, i, number](std::span<float> values, std::uint64_t seed) {
          draw_tensor(values, own, seed, i, number);
        };
      }
      visit(spec, layer.own[number]);
    }
    linear(prefix + "linear1", layer.linear1, f, e);
    linear(prefix + "linear2", layer.linear2, e, f);
    norm(prefix + "norm1", layer.norm1, e);
    norm(prefix + "norm2", layer.norm2, e);
  }
  const std::int64_t last = config.last_width();
  if (config.final_norm) norm("transformer.norm", weights.final_norm, last);
  linear("predictor", weights.predictor, config.num_outputs(), last);
}

}  // namespace

int value_width(const ModelConfig& config) {
  return config.embedding == EmbeddingKind::kValueConcatPosition ? config.d_model / 2
                                                                 : config.d_model;
}

int position_width(const ModelConfig& config) {
  return config.embedding == EmbeddingKind::kValue ? 0 : value_width(config);
}

std::int64_t TensorSpec::num_elements() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

void TensorSpec::check(std::span<const float> values, const std::string& file) const {
  const std::string wrong = refuse ? refuse(values) : "";
  if (!wrong.empty()) throw ModelError(file + ": tensor \"" + name + "\": " + wrong);
}

Matrix TensorSpec::new_matrix() const {
  const auto cols = static_cast<std::size_t>(shape.back());
  return Matrix(static_cast<std::size_t>(num_elements()) / cols, cols);
}

void for_each_tensor(const ModelConfig& config, ModelWeights& weights,
                     const std::function<void(const TensorSpec&, Matrix&)>& visit) {
  weights.layers.resize(static_cast<std::size_t>(config.num_layer_weights()));
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const AttentionConfig& attention =
        config.attention[config.first_layer_with(static_cast<int>(i))];
    weights.layers[i].projections.resize(
        attention.kind().projections(attention, config.dims()).size());
    weights.layers[i].own.resize(own_tensors(attention, config.dims()).size());
  }
  visit_tensors(config, weights, visit);
}

void for_each_tensor(const ModelConfig& config, const ModelWeights& weights,
                     const std::function<void(const TensorSpec&, const Matrix&)>& visit) {
  assert(weights.layers.size() == static_cast<std::size_t>(config.num_layer_weights()));
  visit_tensors(config, weights, visit);
}

std::vector<TensorSpec> list_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  ModelWeights unused;
  for_each_tensor(config, unused, [&](const TensorSpec& spec, Matrix&) { specs.push_back(spec); });
  return specs;
}

std::int64_t count_parameters(const ModelConfig& config) {
  std::int64_t count = 0;
  for (const TensorSpec& spec : list_tensors(config)) {
    if (spec.is_parameter) count += spec.num_elements();
  }
  return count;
}

Matrix computed_positions(const ModelConfig& config) {
  const std::size_t rows = static_cast<std::size_t>(config.max_length);
  const std::size_t cols = static_cast<std::size_t>(position_width(config));
  if (config.position_encoding != PositionEncoding::kSinusoidal || rows == 0 || cols == 0 ||
      rows > kMaxComputedTableBytes / sizeof(float) / cols) {
    return {};
  }
  Matrix table(rows, cols);
  for (std::size_t p = 0; p < rows; ++p) {
    sinusoidal_position(static_cast<std::int64_t>(p), table.row(p));
  }
  return table;
}

void check_tensors(const WeightSource& tensors, const ModelConfig& config) {
  std::set<std::string, std::less<>> expected;
  for (const TensorSpec& spec : list_tensors(config)) {
    expected.insert(spec.name);
    const TensorInfo* const found = tensors.find(spec.name);
    if (found == nullptr) {
      if (spec.optional) continue;
      throw ModelError(tensors.name() + ": tensor \"" + spec.name + "\": missing, expected shape " +
                       shape_to_string(spec.shape));
    }
    if (found->shape != spec.shape) {
      throw ModelError(tensors.name() + ": tensor \"" + spec.name + "\": found shape " +
                       shape_to_string(found->shape) + ", expected " + shape_to_string(spec.shape));
    }
  }
  for (const TensorInfo& tensor : tensors.tensors()) {
    if (!expected.contains(tensor.name)) {
      throw ModelError(tensors.name() + ": tensor " + quote(tensor.name) +
                       ": surplus, found shape " + shape_to_string(tensor.shape) +
                       ", expected no such tensor");
    }
  }
}

ModelWeights load_weights(const WeightSource& tensors, const ModelConfig& config) {
  check_tensors(tensors, config);
  ModelWeights weights;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, Matrix& matrix) {
    const TensorInfo* const found = tensors.find(spec.name);
    if (found == nullptr) return;  // optional
    matrix = spec.new_matrix();
    read_f32(tensors, *found, matrix.values());
    spec.check(matrix.values(), tensors.name());
  });
  if (weights.position_embedding.values().empty()) {
    weights.position_embedding = computed_positions(config);
  }
  return weights;
}

void save_weights(const std::filesystem::path& file, const ModelConfig& config,
                  const ModelWeights& weights,
                  const std::function<TensorType(const TensorSpec&)>& type_of) {
  std::vector<TensorToWrite> tensors;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, const Matrix& matrix) {
    if (spec.optional && matrix.values().empty()) return;
    const TensorType type = type_of ? type_of(spec) : TensorType::kF32;
    tensors.push_back({spec.name, spec.shape, matrix.values(), type});
  });
  write_safetensors(file, tensors);
}

}  // namespace lintel
