// What Transformer::load makes of a model directory, and a transformer is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/attention/attention.h"
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
  std::vector<std::unique_ptr<AttentionBackend>> attention;  // [n_layers]
  std::vector<Layer> layers;                                 // [n_layers]
  std::unique_ptr<Norm> final_norm;                          // null without
  std::unique_ptr<Dense> predictor;
};

}  // namespace lintel
