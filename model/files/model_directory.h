// ModelDirectory: the files of a model, opened once.
#pragma once

#include <filesystem>
#include <string>

#include "model/config/config.h"
#include "model/files/safetensors.h"

namespace lintel {

// config.json as it was read, and model.safetensors, open. What is asked of it is of these two
// files, also when others take their places meanwhile.
class ModelDirectory {
 public:
  // Reads and checks config.json and the weights' header. Throws ModelError.
  explicit ModelDirectory(const std::filesystem::path& path);

  const std::string& config_json() const { return config_json_; }
  const ModelConfig& config() const { return config_; }
  const SafetensorsFile& weights() const { return weights_; }

  // SHA-256 over, for both files in this order, the length (8 bytes, little-endian) and the bytes.
  // Hexadecimal, 64 characters. Reads all of the weights; throws ModelError when they were written
  // to since they were opened.
  std::string fingerprint() const;

 private:
  const std::string config_json_;
  const ModelConfig config_;
  const SafetensorsFile weights_;
};

}  // namespace lintel
