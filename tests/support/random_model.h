// SPDX-License-Identifier: Apache-2.0
// Small models with random weights, for tests that need some model and not a trained one.
#pragma once

#include "model/config/config.h"
#include "model/model_files.h"

namespace lintel::testing {

enum class TinyModel {
  kImage,   // 6x5 pixels, mixture of 3 logistics, value_concat_position, start token 0
  kBytes,   // categorical over 256 bytes, value_concat_position, pre-norm, gelu
  kText,    // as kBytes, trained on texts of 32
  kTokens,  // categorical over 50 tokens, value without position, unbounded length
};

// Two layers, two heads of 8, width 16, linear attention. Loads and steps in microseconds.
ModelConfig tiny_config(TinyModel kind);

}  // namespace lintel::testing
