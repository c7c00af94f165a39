// The matrices of a model that an adapter may adapt.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/config/config.h"

namespace lintel {

// A product of the model. Projections of a layer are one, side by side.
enum class AdaptedProduct { kProjections, kOut, kLinear1, kLinear2, kPredictor };
inline constexpr std::size_t kLayerProducts = 4;  // of them, a layer's

struct AdaptableModule {
  std::string name;    // as in the state_dict: "transformer.layers.0.linear1"
  std::size_t in = 0;  // of an embedding: V
  std::size_t out = 0;
  bool is_embedding = false;  // value_embedding: of no product
  AdaptedProduct product = AdaptedProduct::kPredictor;
  std::size_t weights = 0;       // the set of layer tensors that it is of
  std::size_t first_output = 0;  // where its outputs begin in those of the product
  bool is_read = true;           // false: stored by the format and never computed
};

// Of a model, in the order of its tensors.
std::vector<AdaptableModule> adaptable_modules(const ModelConfig& config);

}  // namespace lintel
