// ModelFiles: the files of a model, opened once.
#pragma once

#include <filesystem>
#include <string>

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

}  // namespace lintel
