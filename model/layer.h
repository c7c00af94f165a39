// One layer of the model, packed for its products.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/core/tensor.h"
#include "model/formats/tensor_list.h"
#include "model/ops/dense.h"

namespace lintel {

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
std::string kernels_of(std::span<const Layer> layers);

// A linear projection with its weights packed.
Dense pack(const LinearWeights& linear, const Dense::Options& options);

}  // namespace lintel
