// SPDX-License-Identifier: Apache-2.0
// What a model is said to take, against what it takes.
#include <filesystem>
#include <fstream>

#include "model/config/config.h"
#include "model/fastest_type.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using testing::tiny_config;
using testing::TinyModel;

TEST_CASE("the memory estimate is enough for the weights, and not far above them") {
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  CAPTURE(to_string(type));
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.d_model = 256;  // a size at which padding is a detail
  config.n_heads = 8;
  config.d_head = 32;
  config.d_ff = 1024;
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 3);
  const Transformer::Options options{.weight_type = type, .attention = std::nullopt};
  const ModelSize memory = measure_model(ModelFiles(directory.path()), options);
  const auto model = Transformer::load(directory.path(), options);
  CHECK(memory.resident_bytes >= model->weight_bytes());
  // Beside the packed weights: embeddings, tables, norms.
  CHECK(memory.resident_bytes <= 2 * model->weight_bytes() + (std::size_t{1} << 20));
  // One tensor at a time.
  CHECK(memory.loading_bytes <= std::size_t{10} << 20);
  CHECK(memory.peak_bytes() == memory.resident_bytes + memory.loading_bytes);
}

TEST_CASE("more inputs than int8 can sum are named before a weight is read") {
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.d_ff = 65537;
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 3);
  const auto options = [](WeightType type) {
    return Transformer::Options{.weight_type = type, .attention = std::nullopt};
  };
  CHECK_NOTHROW(measure_model(ModelFiles(directory.path()), options(WeightType::kBf16)));
  CHECK_THROWS_WITH(measure_model(ModelFiles(directory.path()), options(WeightType::kInt8)),
                    Catch::Contains("linear2.weight") && Catch::Contains("at most 65536"));
  CHECK_THROWS_AS(Transformer::load(directory.path(), options(WeightType::kInt8)), ModelError);
}

TEST_CASE(
    "the memory of every tiny model is estimated, with hash planes in place of its own attention "
    "too") {
  for (const TinyModel kind : {TinyModel::kImage, TinyModel::kBytes, TinyModel::kTokens}) {
    const testing::TemporaryDirectory directory;
    write_random_model(directory.path(), tiny_config(kind), 3);
    const ModelSize plain = measure_model(ModelFiles(directory.path()), {});
    const Transformer::Options with_planes{
        .attention = parse_attention_spec("lsh:rounds=4,bits=32,chunk_size=16")};
    const ModelSize planes = measure_model(ModelFiles(directory.path()), with_planes);
    CHECK(planes.resident_bytes > plain.resident_bytes);
    CHECK(plain.resident_bytes >= Transformer::load(directory.path(), {})->weight_bytes());
  }
}

TEST_CASE("an estimate refuses what a load would refuse") {
  const testing::TemporaryDirectory directory;
  const auto write = [&] {
    write_random_model(directory.path(), tiny_config(TinyModel::kTokens), 3);
  };
  write();
  std::filesystem::resize_file(directory.path() / "model.safetensors", 500);
  CHECK_THROWS_AS(measure_model(ModelFiles(directory.path()), {}), ModelError);
  std::filesystem::remove(directory.path() / "model.safetensors");
  CHECK_THROWS_AS(measure_model(ModelFiles(directory.path()), {}), ModelError);
  write();
  std::ofstream(directory.path() / "config.json") << "{";
  CHECK_THROWS_AS(measure_model(ModelFiles(directory.path()), {}), ModelError);
  // The config of another model: shapes differ.
  std::ofstream(directory.path() / "config.json") << to_json(tiny_config(TinyModel::kBytes));
  CHECK_THROWS_AS(measure_model(ModelFiles(directory.path()), {}), ModelError);
}

}  // namespace
}  // namespace lintel
