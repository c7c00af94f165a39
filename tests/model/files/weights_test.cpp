// SPDX-License-Identifier: Apache-2.0
// The one list of tensors, and how a file that does not keep to it is refused.
#include "model/formats/weights.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "model/config/attention_spec.h"
#include "model/core/float_formats.h"
#include "model/formats/safetensors.h"
#include "model/formats/safetensors_source.h"
#include "model/model_files.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using testing::tiny_config;
using testing::TinyModel;

// A model directory whose tensors can be spoiled one at a time.
struct Fixture {
  testing::TemporaryDirectory directory;
  ModelConfig config;
  ModelWeights weights;
  std::vector<TensorToWrite> tensors;
  std::vector<float> spoiled;  // backing of a tensor that a test replaces

  explicit Fixture(const ModelConfig& c) : config(c), weights(random_weights(c, 1)) {
    for_each_tensor(config, std::as_const(weights), [&](const TensorSpec& spec, const Matrix& m) {
      if (!m.values().empty()) tensors.push_back({spec.name, spec.shape, m.values()});
    });
  }
  TensorToWrite& tensor(const std::string& name) {
    for (TensorToWrite& t : tensors) {
      if (t.name == name) return t;
    }
    throw std::logic_error(name);
  }
  ModelWeights load(TensorType type = TensorType::kF32) {
    write_safetensors(directory.path() / "model.safetensors", tensors, type);
    return load_weights(SafetensorsSource(directory.path()), config);
  }
  std::string error() {
    try {
      load();
    } catch (const ModelError& e) {
      return e.what();
    }
    return "accepted";
  }
};

ModelConfig mixed_config() {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.attention[1] = attention_of("lsh:rounds=3,bits=5,chunk_size=16");
  config.position_encoding = PositionEncoding::kLearned;
  return config;
}

ModelConfig shared_config() {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.n_layers = 4;
  config.attention.assign(4, attention_of("linear"));
  config.layer_weights = {0, 1, 1, 0};
  config.step_embedding = true;
  config.residual = Residual::kReversibleConcat;
  return config;
}

bool same(const Matrix& a, const Matrix& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         std::equal(a.values().begin(), a.values().end(), b.values().begin());
}

}  // namespace

TEST_CASE("weights that are written load as the same bits") {
  for (const ModelConfig& config : {tiny_config(TinyModel::kImage), tiny_config(TinyModel::kTokens),
                                    mixed_config(), shared_config()}) {
    Fixture f(config);
    const ModelWeights loaded = f.load();
    std::size_t compared = 0;
    std::vector<const Matrix*> expected;
    for_each_tensor(config, std::as_const(f.weights),
                    [&](const TensorSpec&, const Matrix& m) { expected.push_back(&m); });
    for_each_tensor(config, loaded, [&](const TensorSpec& spec, const Matrix& m) {
      INFO(spec.name);
      const Matrix& original = *expected.at(compared++);
      if (!spec.optional) CHECK(same(m, original));
    });
    CHECK(compared == list_tensors(config).size());
  }
}

TEST_CASE("F16 and BF16 files load as their values rounded once") {
  Fixture f(mixed_config());
  const ModelWeights half = f.load(TensorType::kF16);
  const ModelWeights brain = f.load(TensorType::kBf16);
  const auto original = f.weights.layers[1].linear1.weight.values();
  for (std::size_t i = 0; i < original.size(); ++i) {
    CHECK(half.layers[1].linear1.weight.values()[i] == f16_to_f32(f32_to_f16(original[i])));
    CHECK(brain.layers[1].linear1.weight.values()[i] == bf16_to_f32(f32_to_bf16(original[i])));
  }
}

TEST_CASE("the reference models load") {
  for (const char* name : {"linear-small", "linear-gelu-nofinalnorm-small", "softmax-small",
                           "lsh1-small", "lsh4-small"}) {
    const auto directory = std::filesystem::path(LINTEL_TEST_DATA "/golden") / name;
    const ModelFiles files(directory);
    const ModelConfig& config = files.config();
    const ModelWeights weights = load_weights(files.weights(), config);
    CHECK(weights.position_embedding.rows() == static_cast<std::size_t>(config.max_length));
    const bool lsh = config.attention[0].type() == std::string("lsh");
    REQUIRE(weights.layers[1].own.size() == (lsh ? 1 : 0));
    if (lsh) {
      CHECK(weights.layers[1].own[0].rows() == config.attention[0].integer("rounds") * 8u);
    }
  }
}

TEST_CASE("the position table that the reference stores is the one computed without it") {
  const std::filesystem::path directory = LINTEL_TEST_DATA "/golden/linear-small";
  const ModelFiles files(directory);
  const ModelConfig& config = files.config();
  const ModelWeights stored = load_weights(files.weights(), config);
  std::vector<float> row(static_cast<std::size_t>(position_width(config)));
  double largest = 0;
  for (std::size_t p = 0; p < stored.position_embedding.rows(); ++p) {
    sinusoidal_position(static_cast<std::int64_t>(p), row);
    for (std::size_t i = 0; i < row.size(); ++i) {
      largest = std::max(largest, std::abs(double{row[i]} - stored.position_embedding.row(p)[i]));
    }
  }
  INFO("largest difference " << largest);
  CHECK(largest < 1e-4);  // the reference multiplies angles in f32: p * 2^-24 at most, p < 783
}

TEST_CASE("a sinusoidal table that is left out is computed, unless it is too large or unbounded") {
  Fixture f(tiny_config(TinyModel::kImage));
  const ModelWeights loaded = f.load();
  REQUIRE(loaded.position_embedding.rows() == 29);
  REQUIRE(loaded.position_embedding.cols() == 8);
  std::vector<float> row(8);
  sinusoidal_position(28, row);
  CHECK(std::equal(row.begin(), row.end(), loaded.position_embedding.row(28).begin()));
  CHECK(row[0] == static_cast<float>(std::sin(28.0)));
  CHECK(row[3] == static_cast<float>(std::cos(28.0 * std::pow(10000.0, -2.0 / 8))));

  f.config.max_length = std::int64_t{1} << 30;
  CHECK(f.load().position_embedding.rows() == 0);
  f.config.max_length = 0;
  CHECK(f.load().position_embedding.rows() == 0);
}

TEST_CASE("a stored position table is refused where positions are unbounded") {
  Fixture f(tiny_config(TinyModel::kImage));
  f.config.max_length = 0;
  f.spoiled.resize(29 * 8);
  f.tensors.push_back({"pos_embedding.pe", {1, 29, 8}, f.spoiled});
  CHECK_THAT(f.error(), Contains("\"pos_embedding.pe\": surplus, found shape [1, 29, 8]"));
}

TEST_CASE("every tensor that is missing is named with the shape it should have") {
  const ModelConfig config = mixed_config();
  for (const TensorSpec& spec : list_tensors(config)) {
    Fixture f(config);
    std::erase_if(f.tensors, [&](const TensorToWrite& t) { return t.name == spec.name; });
    CHECK_THAT(f.error(), Contains("model.safetensors: tensor \"" + spec.name +
                                   "\": missing, expected shape " + shape_to_string(spec.shape)));
  }
}

TEST_CASE("a surplus tensor is named") {
  Fixture f(mixed_config());
  f.spoiled.resize(6);
  f.tensors.push_back({"transformer.layers.2.norm1.bias", {2, 3}, f.spoiled});
  CHECK_THAT(f.error(),
             Contains("\"transformer.layers.2.norm1.bias\": surplus") && Contains("[2, 3]"));
}

TEST_CASE("the name of a surplus tensor cannot begin a line of its own in a log") {
  Fixture f(mixed_config());
  f.spoiled.resize(6);
  f.tensors.push_back({"x\n2024-01-31 00:00:00 info all is well\x1b[2J", {2, 3}, f.spoiled});
  const std::string error = f.error();
  CHECK_THAT(error, Contains("x\\n2024-01-31") && Contains("surplus"));
  CHECK(std::ranges::none_of(error, [](char c) { return c == '\n' || c == '\x1b'; }));
}

TEST_CASE("a tensor of another shape is refused with both shapes") {
  for (const TensorSpec& spec : list_tensors(mixed_config())) {
    Fixture f(mixed_config());
    TensorToWrite& tensor = f.tensor(spec.name);
    f.spoiled.resize(tensor.values.size() / static_cast<std::size_t>(tensor.shape.back()) *
                     static_cast<std::size_t>(tensor.shape.back() + 1));
    tensor.shape.back() += 1;
    tensor.values = f.spoiled;
    CHECK_THAT(f.error(), Contains("tensor \"" + spec.name + "\": found shape " +
                                   shape_to_string(tensor.shape) + ", expected " +
                                   shape_to_string(spec.shape)));
  }
  Fixture transposed(mixed_config());
  std::swap(transposed.tensor("predictor.weight").shape[0],
            transposed.tensor("predictor.weight").shape[1]);
  CHECK_THAT(transposed.error(), Contains("found shape [16, 256], expected [256, 16]"));
  Fixture flat(mixed_config());
  flat.tensor("predictor.weight").shape = {256 * 16};
  CHECK_THAT(flat.error(), Contains("found shape [4096], expected [256, 16]"));
}

TEST_CASE("NaN and infinity are refused with tensor and index") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
      Fixture f(mixed_config());
      f.weights.layers[1].linear2.weight.values()[37] = bad;
      CHECK_THROWS_WITH(f.load(type), Contains("transformer.layers.1.linear2.weight") &&
                                          Contains("at index 37, expected a finite number"));
    }
  }
}

TEST_CASE("tensors that layers share are there once, and both streams reach norm and predictor") {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorSpec& spec : list_tensors(shared_config())) {
    CHECK(shapes.emplace(spec.name, spec.shape).second);
  }
  CHECK(shapes.contains("transformer.layers.1.norm2.bias"));
  CHECK_FALSE(shapes.contains("transformer.layers.2.norm2.bias"));
  CHECK(shapes.at("step_embedding.weight") == std::vector<std::int64_t>{4, 16});
  CHECK(shapes.at("transformer.norm.weight") == std::vector<std::int64_t>{32});
  CHECK(shapes.at("predictor.weight") == std::vector<std::int64_t>{256, 32});
  CHECK(shapes.at("transformer.layers.1.norm2.bias") == std::vector<std::int64_t>{16});
}

TEST_CASE("names are unique and parameters are counted without tables and planes") {
  std::set<std::string> names;
  for (const TensorSpec& spec : list_tensors(mixed_config())) {
    CHECK(names.insert(spec.name).second);
  }
  CHECK(names.contains("transformer.layers.1.attention.inner_attention.planes"));
  CHECK_FALSE(names.contains("transformer.layers.0.attention.inner_attention.planes"));

  ModelConfig paper = load_config(LINTEL_TEST_DATA "/golden/linear-small/config.json");
  paper.d_model = 256;
  paper.n_layers = 8;
  paper.n_heads = 8;
  paper.d_head = 32;
  paper.d_ff = 1024;
  paper.attention.assign(8, attention_of("linear"));
  // Per layer 4 (256*256 + 256) + 2*256*1024 + 1024 + 256 + 4*256; then the embedding, norm, head.
  CHECK(count_parameters(paper) == 8 * 789'760 + 256 * 128 + 512 + 30 * 257);
}

}  // namespace lintel
