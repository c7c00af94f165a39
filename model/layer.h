// SPDX-License-Identifier: Apache-2.0
// One layer of the model, packed for its products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/core/tensor.h"
#include "model/formats/weights.h"
#include "model/layers/attention/attention.h"
#include "model/layers/mixers/decoder.h"
#include "model/ops/dense.h"
#include "model/sampling/head.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel {

// Embedding: a token and its position -> the row that enters the first layer.

// Const and shareable between threads. Keeps copies of what it is made from.
class Embedding {
 public:
  // values: [V, value width]; positions: [max_length, position width], row-major. Empty positions
  // where the model has some: sinusoidal ones, computed at every call.
  Embedding(const ModelConfig& config, std::span<const float> values,
            std::span<const float> positions);

  // Concat: [value, position]; add: value + position; value: the value alone. out: [E].
  // REQUIRES: token in 0 .. V-1; 0 <= position, and < max_length where that is not 0.
  void embed(std::int32_t token, std::int64_t position, std::span<float> out) const;
  // The part of the position alone. out: [position width].
  void position_row(std::int64_t position, std::span<float> out) const;

 private:
  // Calls body(i, value i of the position's row).
  template <typename Body>
  void for_each_part(std::int64_t position, Body&& body) const;

  bool concat_ = false;
  std::size_t value_width_ = 0;
  std::size_t position_width_ = 0;
  std::vector<float> values_;
  std::vector<float> positions_;     // [max_length, position_width]; empty: computed
  std::vector<double> frequencies_;  // [position_width / 2, rounded up] when computed
};

// Layer normalization.
struct Norm {
  Norm(NormWeights weights, double layer_norm_eps);

  void apply(MatrixView<const float> x, MatrixView<float> y) const;
  // A few rows at a time, so that these are prepared for their product while they are in the first
  // cache. keeps_values: y.values() are the floats afterwards; else they may be anything.
  void apply(MatrixView<const float> x, DenseInput& y, bool keeps_values) const;

  Matrix gain;  // [1, E], as bias
  Matrix bias;
  float eps;
};

struct Layer {
  Dense projections;                      // [sum of input_widths, E]: those that attention reads
  std::vector<std::size_t> input_widths;  // of each
  Dense out;                              // [E, out_width]
  Dense linear1;                          // [F, E], with the activation
  Dense linear2;                          // [E, F]
  Norm norm1;
  Norm norm2;
};

// Takes the norms out of `weights` and packs copies of the rest, with the options but for what is
// fused, which is the layer's own affair.
Layer make_layer(const ModelConfig& config, const AttentionConfig& attention, LayerWeights& weights,
                 const Dense::Options& options);

// Throws ModelError naming the first projection that has more inputs than `type` can sum exactly.
void check_weight_type(const ModelConfig& config, WeightType type);

// What multiplies the matrices of the layers, as Transformer::kernels().
std::string kernels_of(std::span<const Dense* const> products);

// A linear projection with its weights packed.
Dense pack(const LinearWeights& linear, const Dense::Options& options);

// What Transformer::load makes of a model directory, and a transformer is made of.

struct TransformerParts {
  ModelConfig config;
  WeightType weight_type = WeightType::kF32;
  std::string config_json;
  std::string fingerprint;
  std::vector<std::string> warnings;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: ids alone
  bool recompute = false;
  std::unique_ptr<Head> head;
  std::unique_ptr<Embedding> embedding;
  Matrix step_embedding;  // [n_layers, E]; empty without
  // Of a family of checkpoints; null: the model is of our own format, and has what follows.
  std::unique_ptr<const Decoder> decoder;
  // [n_layers]; layers of the same weights have the same.
  std::vector<std::shared_ptr<const AttentionBackend>> attention;
  std::vector<Layer> layers;         // [config.num_layer_weights()]
  std::unique_ptr<Norm> final_norm;  // null without
  std::unique_ptr<Dense> predictor;

  const Layer& layer(std::size_t i) const {
    return layers[static_cast<std::size_t>(config.weights_of(static_cast<int>(i)))];
  }
  // The products of the layers.
  std::vector<const Dense*> products() const;
};

}  // namespace lintel
