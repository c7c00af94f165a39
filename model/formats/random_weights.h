// Models with random weights: for tests and measurements, which need some model and not a trained
// one.
#pragma once

#include <cstdint>
#include <filesystem>

#include "model/config/config.h"
#include "model/formats/weights.h"

namespace lintel {

// Matrices and biases are N(0, scale), norm gains 1 + N(0, scale), value embeddings and what is not
// learned N(0, 1), but for tensors that declare another draw; tables that can be computed stay
// empty. A pure function of its arguments.
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, float scale = 0.2f);

// Writes config.json and model.safetensors (F32) with random_weights into `directory`, made if
// absent.
void write_random_model(const std::filesystem::path& directory, const ModelConfig& config,
                        std::uint64_t seed, float scale = 0.2f);

}  // namespace lintel
