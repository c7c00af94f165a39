// SPDX-License-Identifier: Apache-2.0
// Every kind of attention is read, written, refused and described as it declares. Names none of
// them.
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config/attention_spec.h"
#include "model/fastest_type.h"
#include "model/formats/weights.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::tiny_config;
using testing::TinyModel;

std::vector<std::string> all_samples() {
  std::vector<std::string> specs;
  for (const std::string& type : attention_types()) {
    for (const std::string& spec : sample_specs(type)) specs.push_back(spec);
  }
  return specs;
}

std::string error_of(const json& object) {
  try {
    parse_attention_config(object.dump(), "f");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

ModelConfig tiny_config_with(TinyModel kind, const std::string& spec) {
  ModelConfig config = tiny_config(kind);
  if (config.max_length == 0) config.max_length = 256;
  config.attention.assign(config.attention.size(), attention_of(spec));
  return config;
}

TEST_CASE("a kind's attention reads back as it is written") {
  const std::string spec = GENERATE(from_range(all_samples()));
  CAPTURE(spec);
  const AttentionConfig config = attention_of(spec);
  CHECK(parse_attention_config(to_json(config), "f") == config);
  const ModelConfig model = tiny_config_with(TinyModel::kBytes, spec);
  CHECK(parse_config(to_json(model), "f").attention == model.attention);
}

TEST_CASE("a kind's keys are refused by name where they are missing, unknown or out of range") {
  const std::string spec = GENERATE(from_range(all_samples()));
  CAPTURE(spec);
  const AttentionConfig config = attention_of(spec);
  const json whole = json::parse(to_json(config));
  const auto with = [&](const std::string& key, const json& value) {
    json changed = whole;
    changed[key] = value;
    return error_of(changed);
  };
  CHECK_THAT(with("no_such_key", 1), Contains("unknown key \"no_such_key\"") &&
                                         Contains(std::string("type \"") + config.type() + "\""));
  for (const ConfigKey& key : config.kind().keys) {
    const std::string named = std::string("key \"") + key.name + "\": found ";
    json without = whole;
    without.erase(key.name);
    CAPTURE(key.name);
    if (key.initial == nullptr) {
      CHECK_THAT(error_of(without), Contains(named + "nothing, expected "));
    } else {
      REQUIRE(error_of(without) == "accepted");
      const AttentionConfig left_out = parse_attention_config(without.dump(), "f");
      CHECK(json::parse(to_json(left_out))[key.name] == json::parse(key.initial));
    }
    for (const json& wrong : {json("x"), json::array(), json::object(), json(-1)}) {
      CHECK_THAT(with(key.name, wrong), Contains(named + wrong.dump()));
    }
    CHECK((with(key.name, nullptr) == "accepted") == (key.null_means != nullptr));
    if (key.type == ConfigKey::Type::kInteger || key.type == ConfigKey::Type::kIntegers) {
      const auto low = static_cast<std::int64_t>(key.low);
      const auto high = static_cast<std::int64_t>(key.high);
      for (const std::int64_t inside : {low, high}) CHECK(with(key.name, inside) == "accepted");
      for (const json& outside : {json(low - 1), json(high + 1), json(0.5)}) {
        CHECK_THAT(with(key.name, outside),
                   Contains(named + outside.dump() + ", expected a whole"));
      }
    }
    if (key.type == ConfigKey::Type::kPositive) {
      CHECK(with(key.name, key.high) == "accepted");
      for (const json& outside : {json(0.0), json(key.high * 1.01), json(1e-300)}) {
        CHECK_THAT(with(key.name, outside), Contains(named + outside.dump()));
      }
    }
    if (key.type == ConfigKey::Type::kIntegers) {
      const auto low = static_cast<std::int64_t>(key.low);
      CHECK(with(key.name, json::array({low, low + 1})) == "accepted");
      CHECK_THAT(with(key.name, json::array({low, low - 1})), Contains(named));
    }
    if (key.type == ConfigKey::Type::kNotNegative) {
      for (const double inside : {0.0, key.high}) CHECK(with(key.name, inside) == "accepted");
      for (const json& outside : {json(-0.5), json(key.high * 1.01), json(1e-300)}) {
        CHECK_THAT(with(key.name, outside), Contains(named + outside.dump()));
      }
    }
    if (key.type == ConfigKey::Type::kBoolean) {
      for (const bool value : {true, false}) CHECK(with(key.name, value) == "accepted");
    }
    for (const char* choice : key.choices) {
      if (choice != nullptr) CHECK(with(key.name, choice) == "accepted");
    }
  }
}

TEST_CASE("help and JSON list every kind and each of its keys") {
  const std::string help = kinds_help();
  const json kinds = json::parse(kinds_json())["kinds"];
  REQUIRE(kinds.size() == attention_kinds().size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const AttentionKind& kind = *attention_kinds()[i];
    CHECK(kinds[i]["type"] == kind.type);
    CHECK_THAT(help, Contains(kind.type));
    REQUIRE(kinds[i]["keys"].size() == kind.keys.size());
    for (std::size_t k = 0; k < kind.keys.size(); ++k) {
      CHECK(kinds[i]["keys"][k]["name"] == kind.keys[k].name);
      CHECK_THAT(help, Contains(std::string(k == 0 ? " (" : ", ") + kind.keys[k].name));
    }
    CHECK(kinds[i]["samples"].size() == kind.samples.size());
  }
}

TEST_CASE("an attention that is no kind is refused with those there are") {
  for (const std::string& type : attention_types()) {
    CHECK_THROWS_AS(attention_kind("quadratic"), ModelError);
    CHECK_THROWS_WITH(attention_kind("quadratic"), Contains("quadratic") && Contains(type));
    CHECK_THROWS_WITH(parse_attention_spec("quadratic"), Contains(type));
    CHECK(attention_kind(type).type == type);
    CHECK(sample_attention(type).type() == type);
  }
}

std::vector<float> outputs_of(const Transformer& model) {
  Workspace workspace = model.new_workspace(1);
  SequenceState sequence = model.new_sequence();
  std::vector<float> all;
  for (std::int32_t token = 0; token < 20; ++token) {
    const BatchRow row{token, &sequence, /*wants_output=*/true};
    const auto out = model.step({&row, 1}, workspace).row(0);
    all.insert(all.end(), out.begin(), out.end());
  }
  CHECK(sequence.bytes() <= model.state_bytes(20));
  return all;
}

TEST_CASE("a model of any kind is written, measured, loaded and counted by its list of tensors") {
  const std::string spec = GENERATE(from_range(all_samples()));
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kInt8);
  CAPTURE(spec, to_string(type));
  const testing::TemporaryDirectory directory;
  const ModelConfig config = tiny_config_with(TinyModel::kBytes, spec);
  write_random_model(directory.path(), config, 3);
  const Transformer::Options options{.weight_type = type, .attention = std::nullopt};
  const auto model = Transformer::load(directory.path(), options);
  CHECK(model->warnings().empty());
  std::int64_t learned = 0;
  std::size_t bytes = 0;
  for (const TensorSpec& tensor : list_tensors(config)) {
    if (tensor.is_parameter) learned += tensor.num_elements();
    if (!tensor.optional) bytes += static_cast<std::size_t>(tensor.num_elements()) * sizeof(float);
  }
  CHECK(model->num_parameters() == learned);
  const ModelSize memory = measure_model(ModelFiles(directory.path()), options);
  CHECK(memory.loading_bytes >= bytes);
  CHECK(memory.resident_bytes >= model->weight_bytes());
  for (const float value : outputs_of(*model)) REQUIRE(std::isfinite(value));
}

TEST_CASE("any kind runs in place of any other, and the model says so") {
  const std::string spec = GENERATE(from_range(all_samples()));
  const std::string own = GENERATE(from_range(attention_types()));
  CAPTURE(spec, own);
#ifdef LINTEL_ONLY_KIND  // of a program whose other kinds are those of model_test
  if (own != LINTEL_ONLY_KIND && !spec.starts_with(LINTEL_ONLY_KIND)) return;
#endif
  const testing::TemporaryDirectory directory;
  const ModelConfig config = tiny_config_with(TinyModel::kBytes, sample_specs(own).front());
  write_random_model(directory.path(), config, 3);
  const Transformer::Options options{.attention = parse_attention_spec(spec)};
  const auto model = Transformer::load(directory.path(), options);
  CHECK(model->config().attention[1] ==
        options.attention->applied_to(config.attention[1], config.dims()));
  CHECK(model->warnings().empty() == (model->config().attention == config.attention));
  const std::vector<float> outputs = outputs_of(*model);
  for (const float value : outputs) REQUIRE(std::isfinite(value));
  CHECK(outputs == outputs_of(*Transformer::load(directory.path(), options)));
  CHECK(measure_model(ModelFiles(directory.path()), options).resident_bytes >=
        model->weight_bytes());
}

}  // namespace
}  // namespace lintel
