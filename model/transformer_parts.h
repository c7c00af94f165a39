// What Transformer::load makes of a model directory, and a transformer is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/core/tensor.h"
#include "model/embedding.h"
#include "model/layer.h"
#include "model/layers/attention/attention.h"
#include "model/ops/dense.h"
#include "model/sampling/head.h"

namespace lintel {

struct TransformerParts {
  ModelConfig config;
  WeightType weight_type = WeightType::kF32;
  std::string config_json;
  std::string fingerprint;
  std::vector<std::string> warnings;
  bool recompute = false;
  std::unique_ptr<Head> head;
  std::unique_ptr<Embedding> embedding;
  Matrix step_embedding;  // [n_layers, E]; empty without
  // [n_layers]; layers of the same weights have the same.
  std::vector<std::shared_ptr<const AttentionBackend>> attention;
  std::vector<Layer> layers;         // [config.num_layer_weights()]
  std::unique_ptr<Norm> final_norm;  // null without
  std::unique_ptr<Dense> predictor;

  const Layer& layer(std::size_t i) const {
    return layers[static_cast<std::size_t>(config.weights_of(static_cast<int>(i)))];
  }
};

}  // namespace lintel
