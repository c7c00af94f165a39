// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <fstream>
#include <span>
#include <vector>

#include "model/fastest_type.h"
#include "model/formats/weights.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

std::unique_ptr<Transformer> load(const TemporaryDirectory& directory, WeightType type) {
  return Transformer::load(directory.path(), {.weight_type = type});
}

TEST_CASE("a model loses nothing against itself, and narrower types lose more") {
  const auto kind = GENERATE(TinyModel::kBytes, TinyModel::kImage, TinyModel::kTokens);
  CAPTURE(static_cast<int>(kind));
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(kind), /*seed=*/1);
  const auto exact = load(directory, WeightType::kF32);
  CHECK(kl_divergence_bits(*exact, *exact) == 0.0);
  const double in_bf16 = kl_divergence_bits(*exact, *load(directory, WeightType::kBf16));
  const double in_int8 = kl_divergence_bits(*exact, *load(directory, WeightType::kInt8));
  CHECK(in_bf16 > 0.0);
  CHECK(in_int8 > in_bf16);
  CHECK(in_int8 < 0.1);
  // A pure function of the two.
  CHECK(kl_divergence_bits(*exact, *load(directory, WeightType::kInt8)) == in_int8);
}

TEST_CASE("the loss on a text is a sum over its tokens, and 0 of a model against itself") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kBytes), /*seed=*/1);
  const auto exact = load(directory, WeightType::kF32);
  const auto narrow = load(directory, WeightType::kInt8);
  std::vector<std::int32_t> tokens;
  for (std::int32_t t = 0; t < 150; ++t) tokens.push_back(t * 37 % 256);
  const auto lost = [&](std::size_t count) {
    return kl_divergence_bits(*exact, *narrow, std::span(tokens).first(count)) *
           static_cast<double>(count);
  };
  CHECK(kl_divergence_bits(*exact, *exact, tokens) == 0.0);
  CHECK(lost(1) > 0.0);
  for (std::size_t count = 2; count <= tokens.size(); ++count) CHECK(lost(count) > lost(count - 1));
}

TEST_CASE("a model that is not finite loses NaN bits") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kBytes), /*seed=*/1);
  const auto exact = load(directory, WeightType::kF32);
  const TemporaryDirectory broken;
  const ModelConfig config = tiny_config(TinyModel::kBytes);
  ModelWeights weights = random_weights(config, /*seed=*/1);
  for (float& value : weights.predictor.weight.row(3)) value = 3e38f;  // products with it overflow
  std::ofstream(broken.path() / "config.json") << to_json(config);
  save_weights(broken.path() / "model.safetensors", config, weights);
  CHECK(std::isnan(kl_divergence_bits(*exact, *load(broken, WeightType::kF32))));
}

}  // namespace
}  // namespace lintel::testing
