// SPDX-License-Identifier: Apache-2.0
#include "model/sampling/head.h"

namespace lintel {

std::unique_ptr<Head> make_categorical_head(const ModelConfig& config);
std::unique_ptr<Head> make_mixture_of_logistics_head(const ModelConfig& config);

std::unique_ptr<Head> make_head(const ModelConfig& config) {
  return config.head == HeadKind::kCategorical ? make_categorical_head(config)
                                               : make_mixture_of_logistics_head(config);
}

}  // namespace lintel
