// One layer of the model, packed for its products.
#pragma once

#include <span>
#include <string>

#include "model/base/tensor.h"
#include "model/config/config.h"
#include "model/dense/dense.h"
#include "model/files/weights.h"

namespace lintel {

// Layer normalization.
struct Norm {
  Norm(NormWeights weights, double layer_norm_eps);

  void apply(MatrixView<const float> x, MatrixView<float> y) const;
  // Row by row, so that a row is prepared for its product while it is in the first cache.
  void apply(MatrixView<const float> x, DenseInput& y) const;

  Matrix gain;  // [1, E], as bias
  Matrix bias;
  float eps;
};

struct Layer {
  Dense query_value_key;  // [2 or 3 * H*D, E]; the keys last, and only where attention reads them
  Dense out;              // [E, H*D]
  Dense linear1;          // [F, E], with the activation
  Dense linear2;          // [E, F]
  Norm norm1;
  Norm norm2;
};

// Takes the norms out of `weights` and packs copies of the rest, with the options but for what is
// fused, which is the layer's own affair.
Layer make_layer(const ModelConfig& config, LayerWeights& weights, bool uses_keys,
                 const Dense::Options& options);

// Throws ModelError naming the first projection that has more inputs than `type` can sum exactly.
void check_weight_type(const ModelConfig& config, WeightType type);

// What multiplies the matrices of the layers, as Transformer::kernels().
std::string kernels_of(std::span<const Layer> layers);

// A linear projection with its weights packed.
Dense pack(const LinearWeights& linear, const Dense::Options& options);

}  // namespace lintel
