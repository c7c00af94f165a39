// SPDX-License-Identifier: Apache-2.0
// PEFT's two files: what is read, and how every defect is refused.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "model/config/attention_spec.h"
#include "model/core/sha256.h"
#include "model/formats/safetensors.h"
#include "model/lora/adapter.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::tiny_config;
using testing::TinyModel;

// The configuration as PEFT 0.17 writes it.
const char* const kPeftConfig = R"({
  "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
  "base_model_name_or_path": "some/where", "bias": "none", "corda_config": null,
  "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
  "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
  "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
  "loftq_config": {}, "lora_alpha": 6, "lora_bias": false, "lora_dropout": 0.05,
  "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
  "peft_type": "LORA", "peft_version": "0.17.1", "qalora_group_size": 16, "r": 3,
  "rank_pattern": {}, "revision": null, "target_modules": ["linear1", "predictor"],
  "target_parameters": null, "task_type": null, "trainable_token_indices": null,
  "use_dora": false, "use_qalora": false, "use_rslora": false})";

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

Tensor filled(std::vector<std::int64_t> shape, float value = 0.5f) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return {std::move(shape), std::vector<float>(static_cast<std::size_t>(count), value)};
}

const std::string kPrefix = "base_model.model.";
const std::string kLinear1 = kPrefix + "transformer.layers.1.linear1";
const std::string kEmbedding = kPrefix + "value_embedding.lora_embedding_";

// An adapter of a tiny model: two modules, of which a test spoils something.
struct Files {
  Files() {
    tensors[kLinear1 + ".lora_A.weight"] = filled({3, 16});
    tensors[kLinear1 + ".lora_B.weight"] = filled({32, 3});
    tensors[kEmbedding + "A"] = filled({3, 256});
    tensors[kEmbedding + "B"] = filled({8, 3});
  }
  const std::filesystem::path& path() const { return directory.path(); }
  void write() const {
    std::ofstream(path() / "adapter_config.json") << (text.empty() ? config.dump() : text);
    std::vector<TensorToWrite> all;
    for (const auto& [name, tensor] : tensors) all.push_back({name, tensor.shape, tensor.values});
    write_safetensors(path() / "adapter_model.safetensors", all, type);
  }
  std::string error() const {
    write();
    try {
      Adapter::load(AdapterFiles(path(), model));
    } catch (const ModelError& error) {
      return error.what();
    }
    return "accepted";
  }

  testing::TemporaryDirectory directory;
  ModelConfig model = tiny_config(TinyModel::kBytes);  // E 16, F 32, width of a value 8
  json config = json::parse(kPeftConfig);
  std::string text;  // not empty: in place of config
  TensorType type = TensorType::kF32;
  std::map<std::string, Tensor> tensors;
};

}  // namespace

TEST_CASE("an adapter as PEFT writes it is read") {
  Files files;
  CHECK(files.error() == "accepted");
  const AdapterFiles opened(files.path(), files.model);
  const auto adapter = Adapter::load(opened);
  CHECK(adapter->modules() ==
        std::vector<std::string>{"value_embedding", "transformer.layers.1.linear1"});
  CHECK(adapter->max_rank() == 3);
  CHECK(adapter->bytes() <= opened.bytes());
  CHECK(opened.bytes() >= (3 * (16 + 32) + 3 * (256 + 8)) * sizeof(float));
  CHECK(opened.loading_bytes() == 3 * 256 * sizeof(float));
  CHECK(opened.modules()[0].scaling == 2.0);
}

TEST_CASE("an adapter's fingerprint is the hash over both of its files") {
  Files files;
  files.write();
  const auto fingerprint = [&] {
    return Adapter::load(AdapterFiles(files.path(), files.model))->fingerprint();
  };
  Sha256 hash;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::ifstream in(files.path() / name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    hash.add_length(bytes.size());
    hash.add(bytes);
  }
  const std::string first = fingerprint();
  CHECK(first == hash.hex());
  files.tensors[kEmbedding + "B"].values[5] = 0.25f;
  files.write();
  CHECK(fingerprint() != first);
}

TEST_CASE("rank and scaling of a module are its own where a pattern says so") {
  const auto parsed = [](const std::string& more) {
    return parse_adapter_config(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6)" + more + "}",
                                "FILE");
  };
  const std::string module = "transformer.layers.1.linear1";
  CHECK(parsed("").scaling_of(module) == 1.5);
  CHECK(parsed(R"(, "use_rslora": true)").scaling_of(module) == 3.0);
  const std::string ranks =
      R"(, "rank_pattern": {"zlinear1": 5, "ayers.1.linear1": 6, "linear1": 16,
                                 "transformer.layers.1.linear1": 2})";
  CHECK(parsed(ranks).rank_of(module) == 16);  // the first that fits, and no part of a word
  CHECK(parsed(ranks).rank_of("transformer.layers.1.linear2") == 4);
  CHECK(parsed(R"(, "rank_pattern": {"transformer.layers.1.linear1": 2, "linear1": 16})")
            .rank_of(module) == 2);
  const AdapterConfig both =
      parsed(ranks + R"(, "alpha_pattern": {"linear1": 8.0}, "use_rslora": true)");
  CHECK(both.scaling_of(module) == 2.0);
  CHECK(both.scaling_of("predictor") == 3.0);
  CHECK(parsed(R"(, "rank_pattern": null, "alpha_pattern": null)").rank_of(module) == 4);
}

TEST_CASE("every defect of an adapter is refused by name") {
  struct Defect {
    const char* what;
    std::function<void(Files&)> spoil;
    std::string named;     // in the error
    std::string expected;  // the same
  };
  const auto key = [](const std::string& name, const json& value) {
    return [name, value](Files& f) { f.config[name] = value; };
  };
  const auto dropped = [](const std::string& name) {
    return [name](Files& f) { f.config.erase(name); };
  };
  const std::string unset = "expected null, false, 0 or empty: ";
  const std::string a = kLinear1 + ".lora_A.weight";
  const std::string b = kLinear1 + ".lora_B.weight";
  const std::vector<Defect> defects = {
      {"no LoRA", key("peft_type", "IA3"), "\"peft_type\"", "expected \"LORA\""},
      {"no type", dropped("peft_type"), "\"peft_type\"", "found nothing"},
      {"trained biases", key("bias", "all"), "\"bias\"", "expected \"none\""},
      {"no rank", dropped("r"), "\"r\"", "found nothing"},
      {"rank 0", key("r", 0), "\"r\"", "a whole number from 1 to 1024"},
      {"rank 1025", key("r", 1025), "\"r\"", "a whole number from 1 to 1024"},
      {"half a rank", key("r", 3.5), "\"r\"", "found 3.5"},
      {"no alpha", dropped("lora_alpha"), "\"lora_alpha\"", "found nothing"},
      {"alpha in words", key("lora_alpha", "6"), "\"lora_alpha\"", "a number from 0 to 1000000"},
      {"alpha below 0", key("lora_alpha", -1), "\"lora_alpha\"", "found -1"},
      {"alpha beyond all", key("lora_alpha", 1e30), "\"lora_alpha\"", "found 1e+30"},
      {"rslora in words", key("use_rslora", "yes"), "\"use_rslora\"", "true or false"},
      {"DoRA", key("use_dora", true), "\"use_dora\"", unset + "magnitudes"},
      {"biases of B", key("lora_bias", true), "\"lora_bias\"", unset + "biases of B"},
      {"transposed", key("fan_in_fan_out", true), "\"fan_in_fan_out\"",
       unset + "matrices are [out, in]"},
      {"saved", key("modules_to_save", {"predictor"}), "\"modules_to_save\"",
       unset + "modules that are not adapted"},
      {"replicated", key("layer_replication", json::parse("[[0, 1]]")), "\"layer_replication\"",
       unset + "an adapter does not change"},
      {"token rows", key("trainable_token_indices", {3}), "\"trainable_token_indices\"",
       unset + "rows of an embedding"},
      {"activated later", key("alora_invocation_tokens", {1, 2}), "\"alora_invocation_tokens\"",
       unset + "an adapter is there from"},
      {"parameters", key("target_parameters", {"w"}), "\"target_parameters\"",
       unset + "parameters that are no"},
      {"an unknown switch", key("use_magic", true), "\"use_magic\"", "it is not known here"},
      {"an unknown number", key("magic", 0.5), "\"magic\"", "it is not known here"},
      {"an unknown object", key("magic_config", {{"a", 1}}), "\"magic_config\"",
       "it is not known here"},
      {"qalora", key("use_qalora", true), "\"use_qalora\"", "it is not known here"},
      {"another base", key("init_lora_weights", "pissa"), "\"init_lora_weights\"",
       "fits another base"},
      {"a start that is none", key("init_lora_weights", 1), "\"init_lora_weights\"", "found 1"},
      {"a pattern of patterns", key("rank_pattern", {{"layers.*.linear1", 3}}), "\"rank_pattern\"",
       "found \"layers.*.linear1\""},
      {"an anchored pattern", key("alpha_pattern", {{"^linear1", 3}}), "\"alpha_pattern\"",
       "found \"^linear1\""},
      {"an empty pattern", key("rank_pattern", {{"", 3}}), "\"rank_pattern\"", "found \"\""},
      {"a pattern's rank", key("rank_pattern", {{"linear1", 0}}), "\"rank_pattern.linear1\"",
       "a whole number from 1 to 1024"},
      {"a pattern's alpha", key("alpha_pattern", {{"linear1", "x"}}), "\"alpha_pattern.linear1\"",
       "a number from 0"},
      {"patterns in a list", key("rank_pattern", {1, 2}), "\"rank_pattern\"", "expected an object"},
      {"more patterns than there are modules",
       [](Files& f) {
         for (int i = 0; i <= 10'000; ++i) f.config["rank_pattern"]["m" + std::to_string(i)] = 3;
       },
       "\"rank_pattern\"", "found 10001 entries, expected at most 10000"},
      {"a pattern that the tensors are not of", key("rank_pattern", {{"linear1", 4}}), a,
       "found shape [3, 16], expected [4, 16] for rank 4"},
      {"a key twice",
       [](Files& f) { f.text = R"({"peft_type": "LORA", "r": 3, "r": 2, "lora_alpha": 1})"; },
       "\"r\"", "is there twice"},
      {"no JSON", [](Files& f) { f.text = "{"; }, "adapter_config.json", "not JSON"},
      {"a list", [](Files& f) { f.text = "[]"; }, "adapter_config.json", "expected an object"},
      {"megabytes", [](Files& f) { f.text = std::string((1 << 20) + 1, ' '); },
       "adapter_config.json", "found more than 1048576 bytes"},
      {"deep", [](Files& f) { f.text = std::string(100'000, '['); }, "adapter_config.json",
       "nested 9 deep"},
      {"another rank", [=](Files& f) { f.config["r"] = 2; }, "lora_embedding_A",
       "found shape [3, 256], expected [2, 256] for rank 2"},
      {"no A", [=](Files& f) { f.tensors.erase(a); }, a,
       "missing beside its other half, expected shape [3, 16]"},
      {"no B", [=](Files& f) { f.tensors.erase(b); }, b,
       "missing beside its other half, expected shape [32, 3]"},
      {"no embedding's B", [](Files& f) { f.tensors.erase(kEmbedding + "B"); }, kEmbedding + "B",
       "missing beside its other half, expected shape [8, 3]"},
      {"A transposed",
       [=](Files& f) {
         f.tensors[a] = filled({16, 3});
       },
       a, "found shape [16, 3], expected [3, 16]"},
      {"A flat", [=](Files& f) { f.tensors[a] = filled({48}); }, a, "found shape [48]"},
      {"B of another width",
       [=](Files& f) {
         f.tensors[b] = filled({31, 3});
       },
       b, "found shape [31, 3], expected [32, 3]"},
      {"a layer that is not there",
       [](Files& f) {
         f.tensors[kPrefix + "transformer.layers.2.linear1.lora_A.weight"] = filled({3, 16});
       },
       "transformer.layers.2.linear1.lora_A.weight", "surplus, found shape [3, 16]"},
      {"a norm",
       [](Files& f) {
         f.tensors[kPrefix + "transformer.layers.0.norm1.lora_A.weight"] = filled({3, 16});
       },
       "norm1.lora_A.weight", "surplus"},
      {"an adapter's own name",
       [](Files& f) {
         f.tensors[kPrefix + "predictor.lora_A.default.weight"] = filled({3, 16});
       },
       "predictor.lora_A.default.weight", "surplus"},
      {"a magnitude",
       [](Files& f) { f.tensors[kLinear1 + ".lora_magnitude_vector"] = filled({32}); },
       "lora_magnitude_vector", "surplus"},
      {"a name that would begin a line",
       [](Files& f) { f.tensors["x\nall is well"] = filled({1}); }, "x\\nall is well", "surplus"},
      {"nothing", [](Files& f) { f.tensors.clear(); }, "adapter_model.safetensors",
       "found no tensor"},
      {"NaN", [=](Files& f) { f.tensors[a].values[7] = std::numeric_limits<float>::quiet_NaN(); },
       a, "at index 7, expected a finite number"},
      {"infinity", [](Files& f) { f.tensors[kEmbedding + "A"].values[9] = -INFINITY; },
       kEmbedding + "A", "at index 9, expected a finite number"},
      {"infinity of a half float",
       [=](Files& f) {
         f.type = TensorType::kF16;
         f.tensors[b].values[2] = 1e6f;
       },
       b, "at index 2, expected a finite number"},
  };
  for (const Defect& defect : defects) {
    Files files;
    defect.spoil(files);
    const std::string error = files.error();
    INFO(defect.what);
    CHECK_THAT(error, Contains(files.path().string()) && Contains(defect.named) &&
                          Contains(defect.expected));
    CHECK(error.find('\n') == std::string::npos);
    CHECK(error.size() < 1000);
  }
}

TEST_CASE("an adapter without one of its files is refused") {
  Files files;
  files.write();
  std::filesystem::remove(files.path() / "adapter_model.safetensors");
  CHECK_THROWS_WITH(AdapterFiles(files.path(), files.model),
                    Contains("adapter_model.safetensors: cannot open"));
  std::filesystem::remove(files.path() / "adapter_config.json");
  CHECK_THROWS_WITH(AdapterFiles(files.path(), files.model),
                    Contains("adapter_config.json: cannot open"));
}

TEST_CASE("a header of terabytes is refused before memory is asked for") {
  Files files;
  files.write();
  std::string header =
      R"({"base_model.model.predictor.lora_A.weight":{"dtype":"F32","shape":[1024,1099511627776],)"
      R"("data_offsets":[0,4503599627370496]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::ofstream out(files.path() / "adapter_model.safetensors", std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << header;
  out.close();
  CHECK_THROWS_AS(AdapterFiles(files.path(), files.model), ModelError);
}

TEST_CASE("the reported bytes are those of the matrices and little more") {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.d_model = 256;
  config.n_heads = 8;
  config.d_head = 32;
  config.d_ff = 1024;
  const testing::TemporaryDirectory directory;
  write_random_adapter(directory.path(), config, {.rank = 8});
  const AdapterFiles files(directory.path(), config);
  // A layer has 36,864 floats; then there are the predictor and the embedding of 256 tokens.
  const std::size_t floats = 2 * 36'864 + 8 * (256 + 256) + 8 * (256 + 128);
  CHECK(files.bytes() >= floats * sizeof(float));
  CHECK(files.bytes() <= floats * sizeof(float) * 11 / 10);
  CHECK(Adapter::load(files)->bytes() <= files.bytes());
  CHECK(files.loading_bytes() == 8 * 1024 * sizeof(float));
}

TEST_CASE("layers that share weights share their adapters") {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.layer_weights = {0, 0};
  std::vector<std::string> names;
  for (const AdaptableModule& module : adaptable_modules(config)) names.push_back(module.name);
  CHECK(std::ranges::count(names, "transformer.layers.0.linear1") == 1);
  CHECK(std::ranges::count(names, "transformer.layers.1.linear1") == 0);
  CHECK(names.size() == 6 + 2);
}

}  // namespace lintel
