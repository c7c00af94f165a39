// What Transformer::load makes of a model directory, and a transformer is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/attention/attention.h"
#include "model/base/tensor.h"
#include "model/config/config.h"
#include "model/dense/dense.h"
#include "model/head/head.h"
#include "model/network/embedding.h"
#include "model/network/layer.h"

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
