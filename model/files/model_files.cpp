#include "model/files/model_files.h"

#include <utility>

#include "model/base/sha256.h"

namespace lintel {

ModelFiles::ModelFiles(const std::filesystem::path& directory)
    : config_json_(read_config_text(directory / "config.json")),
      config_(parse_config(config_json_, (directory / "config.json").string())),
      weights_(directory / "model.safetensors") {}

LoadedWeights load_with_fingerprint(const ModelFiles& files) {
  Sha256 hash;
  hash.add_length(files.config_json().size());
  hash.add(files.config_json());
  hash.add_length(files.weights().size());
  hash.add(files.weights().read_header());
  ModelWeights weights = load_weights(files.weights(), files.config(),
                                      [&](std::span<const char> bytes) { hash.add(bytes); });
  return {std::move(weights), hash.hex()};
}

}  // namespace lintel
