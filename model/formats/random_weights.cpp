#include "model/formats/random_weights.h"

#include <fstream>
#include <random>
#include <string>

namespace lintel {
namespace {

void fill(Matrix& matrix, double mean, double scale, std::mt19937_64& generator) {
  std::normal_distribution<double> normal(mean, scale);
  for (float& value : matrix.values()) value = static_cast<float>(normal(generator));
}

bool is_norm_gain(const std::string& name) {
  return name.find("norm") != std::string::npos && name.ends_with(".weight");
}

}  // namespace

ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, float scale) {
  std::mt19937_64 generator(seed);
  ModelWeights weights;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, Matrix& matrix) {
    if (spec.optional) return;  // a table that can be computed
    matrix = spec.new_matrix();
    if (spec.draw) return spec.draw(matrix.values(), seed);
    const bool unit = spec.name == "value_embedding.weight" || !spec.is_parameter;
    fill(matrix, is_norm_gain(spec.name) ? 1.0 : 0.0, unit ? 1.0 : scale, generator);
  });
  return weights;
}

void write_random_model(const std::filesystem::path& directory, const ModelConfig& config,
                        std::uint64_t seed, float scale) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << to_json(config);
  save_weights(directory / "model.safetensors", config, random_weights(config, seed, scale));
}

}  // namespace lintel
