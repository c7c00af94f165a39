// SPDX-License-Identifier: Apache-2.0
// Checkpoints on their way into memory: how much of it, and what is refused.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model/fastest_type.h"
#include "model/formats/safetensors.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

std::filesystem::path golden_family(const std::string& name) {
  return std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "families" / name;
}

// RWKV-7 in its author's layout, with random weights in F32.
class RandomRwkv7 {
 public:
  RandomRwkv7(const std::filesystem::path& directory, int layers, std::int64_t width,
              std::int64_t vocabulary) {
    const json config = {
        {"model_type", "rwkv7"},       {"vocab_size", vocabulary}, {"hidden_size", width},
        {"num_hidden_layers", layers}, {"head_dim", 64},           {"norm_eps", 1e-5},
        {"tie_word_embeddings", false}};
    std::ofstream(directory / "config.json") << config.dump();
    add("emb.weight", {vocabulary, width});
    for (int i = 0; i < layers; ++i) {
      const std::string at = "blocks." + std::to_string(i) + ".";
      if (i == 0) add_norm(at + "ln0", width);
      add_norm(at + "ln1", width);
      add_norm(at + "ln2", width);
      for (const char* const name : {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a"}) {
        add(at + "att." + name, {1, 1, width});
      }
      add(at + "att.r_k", {width / 64, 64});
      for (const std::string pair : {"w", "a", "v", "g"}) {
        if (pair == "v" && i == 0) continue;
        if (pair != "g") add(at + "att." + pair + "0", {1, 1, width});
        add(at + "att." + pair + "1", {width, 32});
        add(at + "att." + pair + "2", {32, width});
      }
      for (const char* const name : {"receptance", "key", "value", "output"}) {
        add(at + "att." + name + ".weight", {width, width});
      }
      add_norm(at + "att.ln_x", width);
      add(at + "ffn.x_k", {1, 1, width});
      add(at + "ffn.key.weight", {4 * width, width});
      add(at + "ffn.value.weight", {width, 4 * width});
    }
    add_norm("ln_out", width);
    add("head.weight", {vocabulary, width});
    std::vector<TensorToWrite> tensors;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      tensors.push_back({.name = names_[i], .shape = shapes_[i], .values = values_[i]});
    }
    write_safetensors(directory / "model.safetensors", tensors);
  }

 private:
  void add_norm(const std::string& name, std::int64_t width) {
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
    std::vector<float> values(count);
    std::uniform_real_distribution<float> uniform(-0.05f, 0.05f);
    for (float& value : values) value = uniform(generator_);
    names_.push_back(name);
    shapes_.push_back(shape);
    values_.push_back(std::move(values));
  }

  std::mt19937 generator_{7};
  std::vector<std::string> names_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<std::vector<float>> values_;
};

// "VmRSS" or "VmHWM" of this process, in bytes.
std::size_t memory_of(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoul(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// A copy of a directory of tests/golden/families whose config.json was changed.
struct Changed {
  Changed(const std::string& name, const json& changes) {
    std::filesystem::copy(golden_family(name), directory.path(),
                          std::filesystem::copy_options::recursive);
    std::ifstream in(golden_family(name) / "config.json");
    json config = json::parse(in);
    config.merge_patch(changes);
    std::filesystem::remove(directory.path() / "config.json");
    std::ofstream(directory.path() / "config.json") << config.dump();
  }
  void refused(const std::string& why) const {
    CHECK_THROWS_WITH(Transformer::load(directory.path(), {}), Contains(why));
  }
  TemporaryDirectory directory;
};

}  // namespace

TEST_CASE("families: loading takes little more than the model, in any weight type") {
  if (kSanitized) return;  // whose memory is not the model's
  const TemporaryDirectory directory;
  { RandomRwkv7(directory.path(), /*layers=*/6, /*width=*/512, /*vocabulary=*/16'384); }
  for (const WeightType type : kWeightTypes) {
    CAPTURE(to_string(type));
    const ModelFiles files(directory.path());
    const ModelSize size = measure_model(files, {.weight_type = type});
    std::ofstream("/proc/self/clear_refs") << "5";  // starts a new peak
    const std::size_t before = memory_of("VmRSS");
    const auto model = Transformer::load(files, {.weight_type = type});
    const std::size_t taken = memory_of("VmHWM") - std::min(before, memory_of("VmHWM"));
    CHECK(model->weight_bytes() <= size.resident_bytes);
    constexpr std::size_t kSlack = std::size_t{12} << 20;
    CHECK(taken <= model->weight_bytes() + kSlack);
    CHECK(taken <= size.peak_bytes() + kSlack);
  }
}

TEST_CASE("families: keys that would change the function are refused by name") {
  Changed("qwen3_5", {{"logit_scale", 2.0}})
      .refused("key \"logit_scale\": found 2.0, expected no such key");
  Changed("qwen3_5", {{"quantization_config", {{"bits", 4}}}}).refused("\"quantization_config\"");
  Changed("qwen3_5", {{"hidden_act", "gelu"}}).refused("expected \"silu\"");
  Changed("qwen3_5", {{"rope_parameters", {{"rope_type", "yarn"}}}})
      .refused("expected \"default\"");
  Changed("qwen3_5", {{"num_key_value_heads", 3}}).refused("a multiple of num_key_value_heads, 3");
  Changed("qwen3_5", {{"layer_types", {"linear_attention"}}}).refused("a list of 4 texts");
  Changed("qwen3_5", {{"hidden_size", 1 << 20}}).refused("a whole number from 1 to");
  Changed("qwen3_5", {{"hidden_size", 64}}).refused("found shape [80, 32], expected [80, 64]");
  Changed("qwen3_5", {{"model_type", "llama"}}).refused("expected one of qwen3_5");
  Changed("rwkv7-official", {{"num_heads", 3}}).refused("hidden_size / head_dim, 2");
  Changed("rwkv7-official", {{"decay_low_rank_dim", 9}}).refused("as tensor");
  Changed("rwkv7-official", {{"use_deep_embed", true}}).refused("expected false");
  Changed("rwkv7-official", {{"fuse_norm", true}}).refused("\"fuse_norm\"");
  Changed("rwkv7", {{"attn", {{"layers", {1}}}}}).refused("softmax layers in RWKV-7");
  Changed("rwkv7", {{"value_dim", 64}}).refused("hidden_size, 32, for every layer");
}

TEST_CASE("families: keys without an effect, null and what says nothing are taken") {
  const Changed changed("qwen3_5", {{"use_cache", false},
                                    {"mtp_num_hidden_layers", 3},
                                    {"new_switch", false},
                                    {"another", ""},
                                    {"a_list", json::array()},
                                    {"quantization_config", nullptr},
                                    {"full_attention_interval", 4.0}});
  CHECK(Transformer::load(changed.directory.path(), {})->config().family == "qwen3_5");
}

TEST_CASE("families: a tensor that is missing, surplus or not finite is refused by name") {
  const auto rewritten = [](const auto& change) {
    const Changed copy("rwkv7", json::object());
    const std::filesystem::path file = copy.directory.path() / "model.safetensors";
    std::map<std::string, std::vector<float>> values;
    std::map<std::string, std::vector<std::int64_t>> shapes;
    {
      const SafetensorsFile from(file);
      for (const auto& [name, tensor] : from.tensors()) {
        values[name] = from.read_f32(name);
        shapes[name] = tensor.shape;
      }
    }
    change(values, shapes);
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, of] : values) {
      tensors.push_back({.name = name, .shape = shapes[name], .values = of});
    }
    std::filesystem::remove(file);
    write_safetensors(file, tensors);
    std::string error;
    try {
      Transformer::load(copy.directory.path(), {});
    } catch (const ModelError& refused) {
      error = refused.what();
    }
    return error;
  };
  CHECK_THAT(rewritten([](auto& values, auto&) { values.erase("model.layers.1.attn.k_k"); }),
             Contains("\"model.layers.1.attn.k_k\": missing"));
  CHECK_THAT(rewritten([](auto& values, auto& shapes) {
               values["model.layers.1.attn.extra"] = {1.0f};
               shapes["model.layers.1.attn.extra"] = {1};
             }),
             Contains("\"model.layers.1.attn.extra\": surplus"));
  CHECK_THAT(rewritten([](auto& values, auto&) {
               values["model.layers.2.ffn.key.weight"][5] = std::nanf("");
             }),
             Contains("\"model.layers.2.ffn.key.weight\": found nan at index 5"));
  CHECK_THAT(
      rewritten([](auto& values, auto&) { values["model.embeddings.weight"][3] = INFINITY; }),
      Contains("\"model.embeddings.weight\": found a value that is not finite at index 3"));
}

TEST_CASE("families: a directory in shards is the same model, and a bad index is refused") {
  const TemporaryDirectory directory;
  const auto path = [&](const std::string& name) { return directory.path() / name; };
  const SafetensorsFile from(golden_family("rwkv7") / "model.safetensors");
  std::map<std::string, std::vector<float>> values;
  std::vector<TensorToWrite> shards[2];
  json map = json::object();
  for (const auto& [name, tensor] : from.tensors()) {
    values[name] = from.read_f32(name);
    const std::size_t shard = map.size() % 2;
    shards[shard].push_back({.name = name, .shape = tensor.shape, .values = values[name]});
    map[name] = shard == 0 ? "a.safetensors" : "b.safetensors";
  }
  write_safetensors(path("a.safetensors"), shards[0]);
  write_safetensors(path("b.safetensors"), shards[1]);
  std::filesystem::copy_file(golden_family("rwkv7") / "config.json", path("config.json"));
  const auto write_index = [&](const json& weight_map) {
    std::ofstream(path("model.safetensors.index.json"))
        << json({{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}).dump();
  };
  write_index(map);
  const auto whole = Transformer::load(golden_family("rwkv7"), {});
  const auto model = Transformer::load(directory.path(), {});
  Workspace workspaces[] = {whole->new_workspace(1), model->new_workspace(1)};
  SequenceState sequences[] = {whole->new_sequence(), model->new_sequence()};
  for (std::int32_t token = 0; token < 20; ++token) {
    const BatchRow first{token, &sequences[0], true};
    const BatchRow second{token, &sequences[1], true};
    const MatrixView<const float> a = whole->step({&first, 1}, workspaces[0]);
    const MatrixView<const float> b = model->step({&second, 1}, workspaces[1]);
    REQUIRE(std::ranges::equal(a.row(0), b.row(0)));
  }

  const auto refused = [&](const json& weight_map, const std::string& why) {
    write_index(weight_map);
    CHECK_THROWS_WITH(ModelFiles(directory.path()), Contains(why));
  };
  json wrong = map;
  wrong["emb"] = "a.safetensors";
  refused(wrong, "\"a.safetensors\" has no such tensor");
  wrong = map;
  wrong.erase(wrong.begin());
  refused(wrong, "not in model.safetensors.index.json");
  wrong = map;
  wrong.begin().value() = "../a.safetensors";
  refused(wrong, "beside the index");
  wrong.begin().value() = "/etc/passwd";
  refused(wrong, "beside the index");
  wrong.begin().value() = 7;
  refused(wrong, "expected the name of a file");
  refused(json::array(), "no object \"weight_map\"");
}

}  // namespace lintel::testing
