// ModelSize: how much memory a model will take, known before any of its weights is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/formats/model_files.h"
#include "model/transformer.h"

namespace lintel {

// Upper bounds, for weights and tables. Workspaces and states are not among them: they belong to
// the caller that steps the model.
struct ModelSize {
  std::size_t resident_bytes = 0;  // as long as the Transformer lives
  std::size_t loading_bytes = 0;  // beside them until Transformer::load returns: the weights in f32

  std::size_t peak_bytes() const {
    std::size_t sum = 0;
    return __builtin_add_overflow(resident_bytes, loading_bytes, &sum) ? SIZE_MAX : sum;
  }
};

// Reads no tensor. Throws ModelError for what Transformer::load would refuse of config.json and the
// weights' header.
ModelSize measure_model(const ModelFiles& files, const Transformer::Options& options);

}  // namespace lintel
