// SPDX-License-Identifier: Apache-2.0
// Checkpoints on their way into memory: how much of it, and what is refused.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/fastest_type.h"
#include "model/formats/safetensors.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
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

// Memory that it takes to make what `load` returns, at the peak.
template <typename Load>
std::size_t taken_by(const Load& load, decltype(load())& made) {
  std::ofstream("/proc/self/clear_refs") << "5";  // starts a new peak
  const std::size_t before = memory_of("VmRSS");
  made = load();
  const std::size_t peak = memory_of("VmHWM");
  return peak - std::min(before, peak);
}

// Writes a model of our own format, square but for a hidden width of 4 times as much.
void write_native_model(const std::filesystem::path& directory, int layers, int width) {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.n_layers = layers;
  config.attention.assign(static_cast<std::size_t>(layers), attention_of("linear"));
  config.d_model = width;
  config.n_heads = width / 64;
  config.d_head = 64;
  config.d_ff = 4 * width;
  write_random_model(directory, config, /*seed=*/7, /*scale=*/0.02f);
}

// For every weight type and for auto.
void check_native_loading(int layers, int width) {
  const TemporaryDirectory directory;
  write_native_model(directory.path(), layers, width);
  const ModelFiles files(directory.path());
  std::vector<std::optional<WeightType>> types(kWeightTypes.begin(), kWeightTypes.end());
  types.push_back(std::nullopt);
  for (const std::optional<WeightType> type : types) {
    CAPTURE(type ? to_string(*type) : "auto", layers, width);
    const LoadPlan plan = plan_to_load(files, type, std::nullopt);
    LoadedModel loaded;
    const std::size_t taken = taken_by([&] { return load_as_planned(files, plan); }, loaded);
    CAPTURE(loaded.reason);
    const std::size_t resident = loaded.transformer->weight_bytes();
    const std::size_t largest = std::size_t{4} * sizeof(float) * static_cast<std::size_t>(width) *
                                static_cast<std::size_t>(width);
    constexpr std::size_t kSlack = std::size_t{12} << 20;
    CHECK(resident <= plan.size.resident_bytes);
    CHECK(taken <= resident + largest + kSlack);
    CHECK(taken <= plan.size.peak_bytes() + kSlack);
  }
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

struct Values {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Values>;

// Changes the tensors of a directory. change(Tensors&).
template <typename Change>
void rewrite_tensors(const std::filesystem::path& directory, const Change& change) {
  const std::filesystem::path file = directory / "model.safetensors";
  Tensors all;
  {
    const SafetensorsFile from(file);
    for (const auto& [name, tensor] : from.tensors()) {
      all[name] = {tensor.shape, from.read_f32(name)};
    }
  }
  change(all);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, of] : all) {
    tensors.push_back({.name = name, .shape = of.shape, .values = of.values});
  }
  std::filesystem::remove(file);
  write_safetensors(file, tensors);
}

// Outputs of the first 20 tokens.
std::vector<float> first_outputs(const Transformer& model) {
  Workspace workspace = model.new_workspace(1);
  SequenceState sequence = model.new_sequence();
  std::vector<float> all;
  for (std::int32_t token = 0; token < 20; ++token) {
    const BatchRow row{token, &sequence, true};
    const std::span<const float> outputs = model.step({&row, 1}, workspace).row(0);
    all.insert(all.end(), outputs.begin(), outputs.end());
  }
  return all;
}

}  // namespace

TEST_CASE("families: loading takes little more than the model, in any weight type") {
  if (kSanitized) return;  // a sanitizer's memory is not the model's
  const TemporaryDirectory directory;
  { RandomRwkv7(directory.path(), /*layers=*/6, /*width=*/512, /*vocabulary=*/16'384); }
  for (const WeightType type : kWeightTypes) {
    CAPTURE(to_string(type));
    const ModelFiles files(directory.path());
    const ModelSize size = measure_model(files, {.weight_type = type});
    std::unique_ptr<Transformer> model;
    const std::size_t taken =
        taken_by([&] { return Transformer::load(files, {.weight_type = type}); }, model);
    CHECK(model->weight_bytes() <= size.resident_bytes);
    constexpr std::size_t kSlack = std::size_t{12} << 20;
    CHECK(taken <= model->weight_bytes() + kSlack);
    CHECK(taken <= size.peak_bytes() + kSlack);
  }
}

TEST_CASE("our own format: loading takes the model and one tensor, in any weight type") {
  if (kSanitized) return;  // a sanitizer's memory is not the model's
  check_native_loading(/*layers=*/6, /*width=*/512);
}

TEST_CASE("our own format: so does loading a gigabyte", "[.gigabyte]") {
  check_native_loading(/*layers=*/5, /*width=*/2048);
}

TEST_CASE("families: matrices with as many rows as the vocabulary are among the memory estimate") {
  const TemporaryDirectory directory;
  { RandomRwkv7(directory.path(), /*layers=*/2, /*width=*/64, /*vocabulary=*/256); }
  for (const WeightType type : kWeightTypes) {
    CAPTURE(to_string(type));
    const ModelFiles files(directory.path());
    const auto model = Transformer::load(files, {.weight_type = type});
    CHECK(model->weight_bytes() <= measure_model(files, {.weight_type = type}).resident_bytes);
  }
}

TEST_CASE("families: quantised tensors of a GGUF file stay as they are stored") {
  const std::filesystem::path gguf = std::filesystem::path(LINTEL_TEST_DATA) / "golden" / "gguf";
  const std::string name = GENERATE("qwen35-kmix.gguf", "rwkv7-kmix.gguf", "qwen35-q8_0.gguf");
  CAPTURE(name);
  const ModelFiles files(gguf / name);
  const LoadPlan plan = plan_to_load(files, std::nullopt, std::nullopt);
  CHECK(plan.options.weight_type == WeightType::kBlocks);
  CHECK(plan.candidates.empty());
  const LoadedModel loaded = load_as_planned(files, plan);
  CHECK(loaded.reason == "as the file stores its quantised tensors");
  CHECK(loaded.transformer->weight_bytes() <= plan.size.resident_bytes);
  const auto exact = Transformer::load(files, {.weight_type = WeightType::kF32});
  CHECK(loaded.transformer->weight_bytes() < exact->weight_bytes());
  if (!loaded.transformer->kv_type()) return;
  CHECK(loaded.transformer->kv_type() == KvType::kBf16);
  const LoadPlan in_f32 = plan_to_load(files, std::nullopt, std::nullopt, KvType::kF32);
  CHECK(load_as_planned(files, in_f32).transformer->kv_type() == KvType::kF32);
}

TEST_CASE("families: a tied embedding and head are one copy") {
  const std::filesystem::path golden = std::filesystem::path(LINTEL_TEST_DATA) / "golden";
  struct Case {
    const char* name;
    WeightType type;
    bool is_one_copy;
  };
  const Case which = GENERATE(Case{"families/qwen3_5", WeightType::kF32, true},
                              Case{"families/qwen3_5", WeightType::kBf16, true},
                              Case{"families/qwen3_5", WeightType::kInt8, true},
                              Case{"families/rwkv7", WeightType::kF32, false},
                              Case{"gguf/qwen35-q8_0.gguf", WeightType::kF32, true},
                              Case{"gguf/qwen35-q8_0.gguf", WeightType::kBlocks, true});
  CAPTURE(which.name, to_string(which.type));
  const ModelFiles files(golden / which.name);
  std::vector<std::string> notes;
  const auto decoder =
      files.family()->make(files.checkpoint(), {.weight_type = which.type}, KvType::kF32, notes);
  CHECK((decoder->embedding.size_bytes() == 0) == which.is_one_copy);
  const auto model = Transformer::load(files, {.weight_type = which.type});
  CHECK(model->weight_bytes() <= measure_model(files, {.weight_type = which.type}).resident_bytes);
}

TEST_CASE("families: loading reports the bytes that it has read") {
  const std::filesystem::path golden = std::filesystem::path(LINTEL_TEST_DATA) / "golden";
  const std::string name = GENERATE("families/rwkv7", "gguf/qwen35-q8_0.gguf");
  CAPTURE(name);
  ModelFiles files(golden / name);
  std::uint64_t last = 0;
  std::uint64_t all = 0;
  files.report_reads([&](std::uint64_t done, std::uint64_t total) {
    CHECK(done >= last);
    CHECK(done <= total);
    last = done;
    all = total;
  });
  const auto reported = Transformer::load(files, {.weight_type = WeightType::kF32});
  CHECK(last >= all * 9 / 10);
  const auto plain = Transformer::load(golden / name, {.weight_type = WeightType::kF32});
  CHECK(reported->fingerprint() == plain->fingerprint());
}

TEST_CASE("families: weight type blocks is refused where a file has no quantised tensors") {
  const std::filesystem::path golden = std::filesystem::path(LINTEL_TEST_DATA) / "golden";
  const Transformer::Options options{.weight_type = WeightType::kBlocks};
  CHECK_THROWS_WITH(measure_model(ModelFiles(golden / "gguf" / "rwkv7-f32.gguf"), options),
                    Catch::Contains("weight type blocks: found no quantised tensors"));
  CHECK_THROWS_WITH(Transformer::load(golden / "families" / "rwkv7", options),
                    Catch::Contains("weight type blocks: found no quantised tensors"));
  CHECK_THROWS_WITH(Transformer::load(golden / "linear-small", options),
                    Catch::Contains("weight type blocks: found no quantised tensors"));
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
  Changed("qwen3_5", {{"hidden_size", 64}}).refused("found shape [32], expected [64]");
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

TEST_CASE("families of FLA: keys that would change the function are refused by name") {
  const auto attention = [](const char* name, const json& changes) {
    json layer = {{"layers", {1}}, {"num_heads", 4}};
    layer.update(changes);
    return Changed(name, {{"attn", layer}});
  };
  Changed("gla", {{"attnres_block_size", 4}}).refused("\"attnres_block_size\": found 4");
  Changed("gla", {{"use_gv", true}}).refused("\"use_gv\": found true, expected false");
  Changed("gla", {{"clamp_min", 0.5}}).refused("expected null or a number, at most 0");
  Changed("gla", {{"num_kv_heads", 4}}).refused("a divisor of num_heads, 2");
  Changed("gla", {{"architectures", {"GLAForSequenceClassification"}}})
      .refused("expected [\"GLAForCausalLM\"]");
  Changed("retnet", {{"feature_map", "relu"}}).refused("\"feature_map\"");
  Changed("retnet", {{"expand_k", 0.3}}).refused("a multiple of 2 heads");
  Changed("linear-attn", {{"feature_map", "dpfp"}}).refused("found \"dpfp\", expected");
  Changed("linear-attn", {{"use_short_conv", true}}).refused("\"use_short_conv\"");
  Changed("delta_net", {{"qk_norm", "max"}}).refused("expected \"l2\" or \"sum\"");
  Changed("delta_net", {{"use_output_norm", false}}).refused("expected true");
  Changed("delta_net", {{"conv_size", 65}}).refused("a whole number from 1 to 64");
  Changed("gated-deltanet", {{"num_v_heads", 3}}).refused("a multiple of num_heads, 2");
  attention("gla", {{"layers", {1, 1}}}).refused("\"attn.layers\": found");
  attention("gla", {{"layers", {2}}}).refused("a list of layers from 0 to 1, each at most once");
  attention("gla", {{"layers", {-1}}}).refused("\"attn.layers\"");
  attention("gla", {{"num_heads", 3}}).refused("a divisor of hidden_size, 32");
  attention("gla", {{"qk_norm", true}}).refused("\"attn.qk_norm\"");
  const json twice = {{{"layers", {0}}, {"num_heads", 4}}, {{"layers", {0}}, {"num_heads", 2}}};
  Changed("gla", {{"attn", twice}}).refused("each at most once");
}

TEST_CASE("families of FLA: files of before 2025 are the same models") {
  const auto same = [](const char* name, const auto& change) {
    const Changed old(name, {{"share_conv_kernel", true}});
    rewrite_tensors(old.directory.path(), change);
    CHECK(first_outputs(*Transformer::load(old.directory.path(), {})) ==
          first_outputs(*Transformer::load(golden_family(name), {})));
  };
  const auto layer = [](int number, const std::string& name) {
    return "model.layers." + std::to_string(number) + "." + name;
  };
  same("gla", [&](Tensors& tensors) {
    for (const int number : {0, 1}) {
      Values& gate = tensors[layer(number, "mlp.gate_proj.weight")];
      const Values up = tensors.extract(layer(number, "mlp.up_proj.weight")).mapped();
      gate.shape[0] *= 2;
      gate.values.insert(gate.values.end(), up.values.begin(), up.values.end());
      auto norm = tensors.extract(layer(number, "attn.g_norm_swish_gate.weight"));
      norm.key() = layer(number, "attn.g_norm.weight");
      tensors.insert(std::move(norm));
    }
  });
  same("gated-deltanet", [&](Tensors& tensors) {
    tensors[layer(1, "attn.D")] = {.shape = {2}, .values = {3.0f, 4.0f}};
    tensors[layer(0, "attn.rotary.inv_freq")] = {.shape = {1}, .values = {1.0f}};
  });
}

TEST_CASE("families: a tensor that is missing, surplus or not finite is refused by name") {
  const auto rewritten = [](const auto& change) {
    const Changed copy("rwkv7", json::object());
    rewrite_tensors(copy.directory.path(), change);
    std::string error;
    try {
      Transformer::load(copy.directory.path(), {});
    } catch (const ModelError& refused) {
      error = refused.what();
    }
    return error;
  };
  CHECK_THAT(rewritten([](Tensors& tensors) { tensors.erase("model.layers.1.attn.k_k"); }),
             Contains("\"model.layers.1.attn.k_k\": missing"));
  CHECK_THAT(rewritten([](Tensors& tensors) {
               tensors["model.layers.1.attn.extra"] = {.shape = {1}, .values = {1.0f}};
             }),
             Contains("\"model.layers.1.attn.extra\": surplus"));
  CHECK_THAT(rewritten([](Tensors& tensors) {
               tensors["model.layers.2.ffn.key.weight"].values[5] = std::nanf("");
             }),
             Contains("\"model.layers.2.ffn.key.weight\": found nan at index 5"));
  CHECK_THAT(
      rewritten([](Tensors& tensors) { tensors["model.embeddings.weight"].values[3] = INFINITY; }),
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
  CHECK(first_outputs(*whole) == first_outputs(*model));

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
  refused(wrong, "in the directory of the index");
  wrong.begin().value() = "/etc/passwd";
  refused(wrong, "in the directory of the index");
  wrong.begin().value() = 7;
  refused(wrong, "expected the name of a file");
  refused(json::array(), "no object \"weight_map\"");
}

}  // namespace lintel::testing
