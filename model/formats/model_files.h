// SPDX-License-Identifier: Apache-2.0
// ModelFiles: the files of a model, opened once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"

namespace lintel {

// config.json as it was read, and model.safetensors, open. What is asked of it is of these two
// files, also when others take their places meanwhile.
class ModelFiles {
 public:
  // Reads and checks config.json and the weights' header. Throws ModelError.
  explicit ModelFiles(const std::filesystem::path& directory);

  const std::string& config_json() const { return config_json_; }
  const ModelConfig& config() const { return config_; }
  const SafetensorsFile& weights() const { return weights_; }

 private:
  const std::string config_json_;
  const ModelConfig config_;
  const SafetensorsFile weights_;
};

struct LoadedWeights {
  ModelWeights weights;
  // SHA-256 over, for both files in this order, the length (8 bytes, little-endian) and the bytes.
  // Hexadecimal, 64 characters.
  std::string fingerprint;
};

// Reads every byte of the tensors once: the fingerprint is of the bytes that the weights are made
// of. Throws ModelError as load_weights() does.
LoadedWeights load_with_fingerprint(const ModelFiles& files);

// Models with random weights: for tests and measurements, which need some model and not a trained
// one.

// Matrices and biases are N(0, scale), norm gains 1 + N(0, scale), value embeddings and what is not
// learned N(0, 1), but for tensors that declare another draw; tables that can be computed stay
// empty. A pure function of its arguments.
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, float scale = 0.2f);

// Writes config.json and model.safetensors (F32) with random_weights into `directory`, made if
// absent.
void write_random_model(const std::filesystem::path& directory, const ModelConfig& config,
                        std::uint64_t seed, float scale = 0.2f);

// --attention: another attention on the same weights.

// Puts `spec` in place of every layer's attention. Tensors keep their values where the new kind has
// one of the same name and shape; what it has beside them is drawn: projections with weights from
// N(0, 1/E) and no bias, its own tensors as it declares, by the seed of the spec. Returns whether
// the model is what it was. Throws ModelError as with_attention().
bool replace_attention(const AttentionSpec& spec, ModelConfig& config, ModelWeights& weights);

}  // namespace lintel
