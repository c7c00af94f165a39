#include "model/formats/model_files.h"

#include <utility>

#include "model/core/sha256.h"

namespace lintel {
namespace {

// A config.json but for its trained_length, with the comma that goes with it: advice, which may be
// added to a model that is served without making it another one. REQUIRES: parse_config takes it,
// so the key is there once at most, with a whole number.
std::string without_trained_length(const std::string& json_text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t key = json_text.find("\"trained_length\"");
  if (key == std::string::npos) return json_text;
  std::size_t begin = key;
  std::size_t end = json_text.find_first_of("0123456789", key);
  end = json_text.find_first_not_of("0123456789", end);
  const std::size_t before = json_text.find_last_not_of(kSpace, key - 1);
  if (json_text[before] == ',') {
    begin = before;
  } else {  // the first of the keys
    end = json_text.find_first_not_of(kSpace, json_text.find(',', end) + 1);
  }
  return json_text.substr(0, begin) + json_text.substr(end);
}

}  // namespace

ModelFiles::ModelFiles(const std::filesystem::path& directory)
    : config_json_(read_config_text(directory / "config.json")),
      config_(parse_config(config_json_, (directory / "config.json").string())),
      weights_(directory / "model.safetensors") {}

LoadedWeights load_with_fingerprint(const ModelFiles& files) {
  Sha256 hash;
  const std::string config = without_trained_length(files.config_json());
  hash.add_length(config.size());
  hash.add(config);
  hash.add_length(files.weights().size());
  hash.add(files.weights().read_header());
  ModelWeights weights = load_weights(files.weights(), files.config(),
                                      [&](std::span<const char> bytes) { hash.add(bytes); });
  return {std::move(weights), hash.hex()};
}

}  // namespace lintel
