// SPDX-License-Identifier: Apache-2.0
// Layers that share weights, read their position and step, or are reversible.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/families/family.h"
#include "model/fastest_type.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"
#include "model/model_files.h"
#include "tests/model/support/whole_models.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::Model;
using testing::random_tokens;
using testing::structures;
using testing::walk;

TEST_CASE("shared layers have the bits of layers whose weights are copies", "[rows]") {
  ModelConfig config = structures()[0];
  config.attention = {attention_of("linear"), sample_attention("lsh"), attention_of("linear"),
                      attention_of("softmax"), sample_attention("lsh")};
  const Model shared(config);
  ModelConfig copied = config;
  copied.layer_weights = {};
  const ModelFiles files(shared.directory.path());
  ModelWeights weights = load_weights(files.weights(), config);
  std::vector<TensorToWrite> tensors;
  std::map<std::string, const Matrix*> by_name;
  for_each_tensor(config, std::as_const(weights),
                  [&](const TensorSpec& spec, const Matrix& m) { by_name[spec.name] = &m; });
  for (const TensorSpec& spec : list_tensors(copied)) {
    std::string name = spec.name;
    for (int i = 0; i < config.n_layers; ++i) {
      const std::string prefix = "transformer.layers." + std::to_string(i) + ".";
      if (!spec.name.starts_with(prefix)) continue;
      name = "transformer.layers." + std::to_string(config.weights_of(i)) + "." +
             spec.name.substr(prefix.size());
    }
    tensors.push_back({spec.name, spec.shape, by_name.at(name)->values()});
  }
  const testing::TemporaryDirectory directory;
  std::ofstream(directory.path() / "config.json") << to_json(copied);
  write_safetensors(directory.path() / "model.safetensors", tensors);
  const auto tokens = random_tokens(40, config.vocab_size, 3);
  for (const WeightType type : kWeightTypes) {
    const auto a = Transformer::load(shared.directory.path(), {.weight_type = type});
    const auto b = Transformer::load(directory.path(), {.weight_type = type});
    CHECK(walk(*a, tokens) == walk(*b, tokens));
    // 3 sets in place of 5; every layer has a state of its own.
    CHECK(a->weight_bytes() < b->weight_bytes() * 3 / 4);
    CHECK(a->state_bytes(100) == b->state_bytes(100));
    CHECK(a->sequence_bytes(100) == b->sequence_bytes(100));
    const auto measured = [&](const std::filesystem::path& path) {
      return measure_model(ModelFiles(path), {.weight_type = type}).resident_bytes;
    };
    CHECK(measured(shared.directory.path()) >= a->weight_bytes());
    CHECK(measured(shared.directory.path()) < measured(directory.path()));
  }
  CHECK(walk(*Transformer::load(shared.directory.path(),
                                {.attention = parse_attention_spec("linear:recompute=true")}),
             tokens) ==
        walk(*Transformer::load(directory.path(), {.attention = parse_attention_spec("linear")}),
             tokens));
}

TEST_CASE("another attention is drawn once for layers that share their weights") {
  ModelConfig config = structures()[0];
  const Model model(config);
  const ModelFiles files(model.directory.path());
  const AttentionSpec spec = parse_attention_spec("lsh:rounds=2,bits=4,chunk_size=8");
  const auto tensors = replace_attention(spec, config, files.weights());
  config = with_attention(config, spec);
  const ModelWeights weights = load_weights(*tensors, config);
  CHECK(weights.layers.size() == 3);
  for (const AttentionConfig& attention : config.attention) {
    CHECK(attention.type() == std::string("lsh"));
  }
  for (const LayerWeights& layer : weights.layers) REQUIRE(layer.own.size() == 1);
  CHECK_FALSE(
      std::ranges::equal(weights.layers[0].own[0].values(), weights.layers[1].own[0].values()));
}

TEST_CASE("recompute mode has the bits of steps, for every structure of the layers") {
  const ModelConfig config = GENERATE(from_range(structures()));
  const Model model(config);
  const auto tokens = random_tokens(20, config.vocab_size, 3);
  const auto again = Transformer::load(
      model.directory.path(), {.attention = parse_attention_spec("linear:recompute=true")});
  CHECK(walk(*again, tokens) == walk(*model.transformer, tokens));
}

}  // namespace
}  // namespace lintel
