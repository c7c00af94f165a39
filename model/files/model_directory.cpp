#include "model/files/model_directory.h"

#include "model/base/sha256.h"

namespace lintel {

ModelDirectory::ModelDirectory(const std::filesystem::path& path)
    : config_json_(read_config_text(path / "config.json")),
      config_(parse_config(config_json_, (path / "config.json").string())),
      weights_(path / "model.safetensors") {}

std::string ModelDirectory::fingerprint() const {
  Sha256 hash;
  hash.add_length(config_json_.size());
  hash.add(config_json_);
  hash.add_length(weights_.size());
  weights_.for_each_piece([&](std::span<const char> piece) { hash.add(piece); });
  weights_.check_unchanged();
  return hash.hex();
}

}  // namespace lintel
