// SPDX-License-Identifier: Apache-2.0
#include "model/formats/model_files.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

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

namespace {

LinearWeights drawn_linear(std::size_t out, std::size_t in, bool has_bias, std::uint64_t seed,
                           int layer, std::size_t number) {
  LinearWeights linear{Matrix(out, in), has_bias ? Matrix(1, out) : Matrix()};
  const OwnTensor normal{.name = "", .shape = {1}};
  draw_tensor(linear.weight.values(), normal, ~seed, layer, number);
  const float scale = 1.0f / std::sqrt(static_cast<float>(in));
  for (float& value : linear.weight.values()) value *= scale;
  return linear;
}

template <typename Declared>
auto named(const std::vector<Declared>& all, const std::string& name) {
  return std::ranges::find(all, name, &Declared::name);
}

struct Replacement {
  const AttentionConfig& before;
  const AttentionConfig& after;
  const LayerDims dims;
  const std::optional<std::uint64_t> seed;
  const int layer;

  std::vector<LinearWeights> projections(std::vector<LinearWeights>&& old) const {
    const std::vector<Projection> had = before.kind().projections(before, dims);
    std::vector<LinearWeights> result;
    for (const Projection& p : after.kind().projections(after, dims)) {
      const auto same = named(had, p.name);
      if (same != had.end() && same->width == p.width && same->has_bias == p.has_bias) {
        result.push_back(std::move(old[static_cast<std::size_t>(same - had.begin())]));
        continue;
      }
      result.push_back(drawn_linear(static_cast<std::size_t>(p.width),
                                    static_cast<std::size_t>(dims.d_model), p.has_bias,
                                    seed.value_or(0), layer, result.size()));
    }
    return result;
  }

  std::vector<Matrix> own(std::vector<Matrix>&& old) const {
    const std::vector<OwnTensor> had = own_tensors(before, dims);
    std::vector<Matrix> result;
    for (const OwnTensor& tensor : own_tensors(after, dims)) {
      const auto same = named(had, tensor.name);
      if (same != had.end() && same->shape == tensor.shape && !seed.has_value()) {
        result.push_back(std::move(old[static_cast<std::size_t>(same - had.begin())]));
        continue;
      }
      result.push_back(TensorSpec{tensor.name, tensor.shape}.new_matrix());
      draw_tensor(result.back().values(), tensor, seed.value_or(0), layer, result.size() - 1);
    }
    return result;
  }
};

}  // namespace

bool replace_attention(const AttentionSpec& spec, ModelConfig& config, ModelWeights& weights) {
  const ModelConfig before = std::exchange(config, with_attention(config, spec));
  const LayerDims dims = config.dims();
  for (int i = 0; i < config.num_layer_weights(); ++i) {
    LayerWeights& layer = weights.layers[i];
    const int first = config.first_layer_with(i);
    const AttentionConfig& after = config.attention[first];
    const Replacement replacement{before.attention[first], after, dims, spec.seed, i};
    layer.projections = replacement.projections(std::move(layer.projections));
    layer.own = replacement.own(std::move(layer.own));
    const auto width = static_cast<std::size_t>(out_width(after, dims));
    if (layer.out.weight.cols() == width) continue;
    layer.out = drawn_linear(static_cast<std::size_t>(dims.d_model), width, /*has_bias=*/true,
                             spec.seed.value_or(0), i, layer.projections.size());
  }
  return config.attention == before.attention && !spec.seed.has_value();
}

}  // namespace lintel
