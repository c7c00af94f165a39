// SPDX-License-Identifier: Apache-2.0
// Checkpoints as other programs write them: keys that change nothing, unknown keys, keys that are
// refused, and GGUF files of other converters.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/core/errors.h"
#include "model/families/checkpoint_keys.h"
#include "model/families/gguf_keys.h"
#include "model/formats/safetensors.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

fs::path golden_of(const std::string& name) { return fs::path(LINTEL_TEST_DATA) / "golden" / name; }

std::string text_at(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

// The outputs of 20 tokens.
std::vector<float> outputs_of(const fs::path& path) {
  const auto model = Transformer::load(path, {});
  Workspace workspace = model->new_workspace(1);
  SequenceState sequence = model->new_sequence();
  std::vector<float> all;
  for (std::int32_t token = 0; token < 20; ++token) {
    const BatchRow row{token, &sequence, true};
    const std::span<const float> outputs = model->step({&row, 1}, workspace).row(0);
    all.insert(all.end(), outputs.begin(), outputs.end());
  }
  return all;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - b[i]));
  return most;
}

std::string error_of_loading(const fs::path& path) {
  try {
    Transformer::load(path, {});
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

// A golden directory with another config.json.
class Directory {
 public:
  explicit Directory(const std::string& name)
      : config(json::parse(text_at(golden_of("families/" + name) / "config.json"))) {
    for (const fs::directory_entry& file : fs::directory_iterator(golden_of("families/" + name))) {
      const fs::path& of = file.path();
      if (of.filename() != "golden.safetensors") fs::copy(of, path() / of.filename());
    }
  }

  const fs::path& path() const { return directory_.path(); }
  void write() const { std::ofstream(path() / "config.json") << config.dump(); }
  void write(const std::string& text) const { std::ofstream(path() / "config.json") << text; }
  // The error for config.json with one more key.
  std::string error_with(const std::string& key, const json& value) const {
    json changed = config;
    changed[json::json_pointer("/" + key)] = value;
    write(changed.dump());
    return error_of_loading(path());
  }
  std::vector<std::string> warnings() const {
    write();
    return Transformer::load(path(), {})->warnings();
  }

  json config;

 private:
  TemporaryDirectory directory_;
};

class GgufVariant : public GgufCopy {
 public:
  explicit GgufVariant(const std::string& name) : GgufCopy(golden_of("gguf/" + name)) {}

  fs::path write() const {
    const fs::path file = directory_.path() / "model.gguf";
    GgufCopy::write(file);
    return file;
  }
  std::string error() const { return error_of_loading(write()); }
  std::string error_with(const std::string& key, auto value) const {
    GgufCopy changed = *this;
    changed.set(key, value);
    changed.write(directory_.path() / "changed.gguf");
    return error_of_loading(directory_.path() / "changed.gguf");
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace

TEST_CASE("checkpoints: keys without an effect change nothing") {
  const std::string name = GENERATE("qwen3_5", "qwen3_next", "rwkv7-official", "rwkv7", "gla",
                                    "delta_net", "gated-deltanet", "retnet", "linear-attn");
  CAPTURE(name);
  Directory directory(name);
  directory.config.update(json{{"unsloth_version", "2026.4.2"},
                               {"unsloth_fixed", true},
                               {"model_name", "org/base"},
                               {"_name_or_path", "org/base"},
                               {"auto_map", {{"AutoConfig", "configuration.Config"}}},
                               {"id2label", {{"0", "LABEL_0"}}},
                               {"label2id", {{"LABEL_0", 0}}},
                               {"return_dict", true},
                               {"use_cache", true},
                               {"attn_mode", "chunk"},
                               {"tokenizer_class", "Qwen2Tokenizer"},
                               {"problem_type", "regression"},
                               {"keys_to_ignore_at_inference", {"past_key_values"}},
                               {"max_window_layers", 28},
                               {"sliding_window", 4096},
                               {"use_sliding_window", false},
                               {"temperature", 0.6},
                               {"num_beams", 1},
                               {"_attn_implementation", "sdpa"},
                               {"_attn_implementation_autoset", true},
                               {"torch_dtype", "bfloat16"},
                               {"context_length", 4096},
                               {"logit_scale", 1.0},
                               {"n_group", 1}});
  CHECK(directory.warnings().empty());
  CHECK(outputs_of(directory.path()) == outputs_of(golden_of("families/" + name)));
}

TEST_CASE("checkpoints: an unknown key is a warning with its name and value") {
  Directory directory("qwen3_5-multimodal");
  directory.config["new_switch"] = "on";
  directory.config["text_config"]["other"] = {{"a", 1}};
  directory.config["text_config"]["rope_parameters"]["third"] = 3.5;
  directory.config["says_null"] = nullptr;
  directory.config["says_false"] = false;
  directory.config["says_zero"] = 0;
  directory.config["says_empty"] = "";
  directory.config["says_none"] = json::array();
  const std::vector<std::string> warnings = directory.warnings();
  REQUIRE(warnings.size() == 4);  // the last: its vision tower is ignored
  std::vector<std::string> of_keys(warnings.begin(), warnings.begin() + 3);
  std::ranges::sort(of_keys);
  CHECK_THAT(of_keys[0], Contains("key \"new_switch\": found \"on\", which is not known"));
  CHECK_THAT(of_keys[1], Contains("key \"text_config.other\": found {\"a\":1}"));
  CHECK_THAT(of_keys[2], Contains("key \"text_config.rope_parameters.third\": found 3.5"));
  CHECK(outputs_of(directory.path()) == outputs_of(golden_of("families/qwen3_5-multimodal")));

  CHECK_THROWS_WITH(refuse_unknown_keys(ModelFiles(directory.path())),
                    Contains("expected no such key: it is not known what it changes"));
  CHECK_NOTHROW(refuse_unknown_keys(ModelFiles(golden_of("families/qwen3_5-multimodal"))));

  Directory many("rwkv7");
  for (int i = 0; i < 1000; ++i) many.config["key" + std::to_string(i)] = i + 1;
  const std::vector<std::string> first = many.warnings();
  REQUIRE(first.size() == 17);
  CHECK_THAT(first.back(), Contains("984 more keys are not known"));
}

TEST_CASE("checkpoints: keys that change the function are refused by name") {
  const std::string name = GENERATE("qwen3_5", "rwkv7-official", "rwkv7", "gla", "delta_net");
  const Directory directory(name);
  for (const std::string_view key : refused_checkpoint_keys()) {
    const bool is_read = name == "qwen3_5" && (key == "layer_types" || key == "rope_parameters" ||
                                               key == "rope_scaling");
    if (is_read) continue;
    CAPTURE(name, key);
    const json value = key == "use_sliding_window" ? json(true) : json(7);
    CHECK_THAT(directory.error_with(std::string(key), value),
               Contains("key \"" + std::string(key) + "\": found "));
  }
  CHECK_THAT(directory.error_with("sliding_window", 128), Contains("use_sliding_window false"));
  for (const auto& [key, value] : {std::pair<const char*, json>("rope_scaling_type", "none"),
                                   {"rope_scaling_type", "default"},
                                   {"rope_scaling_type", nullptr},
                                   {"rope_scaling_factor", 1.0},
                                   {"rope_local_base_freq", nullptr},
                                   {"moe_num_experts", 0},
                                   {"clip_qkv", false},
                                   {"quant_method", ""}}) {
    CAPTURE(name, key);
    CHECK(directory.error_with(key, value) == "accepted");
  }
  CHECK_THAT(directory.error_with("rope_scaling_type", "yarn"), Contains("found \"yarn\""));
  CHECK_THAT(directory.error_with("quant_method", "awq"), Contains("found \"awq\""));
}

TEST_CASE("checkpoints: a key that is read by another kind of layer is refused by name") {
  const auto refused = [](const char* name, const char* key, const json& value) {
    CAPTURE(name, key);
    CHECK_THAT(Directory(name).error_with(key, value),
               Contains("key \"" + std::string(key) + "\": found"));
  };
  refused("delta_net", "clamp_min", -2.0);
  refused("delta_net", "num_kv_heads", 7);
  refused("gla", "allow_neg_eigval", true);
  refused("gla", "norm_q", true);
  refused("gla", "head_dim", 7);
  refused("retnet", "qk_norm", "l2");
  refused("gated-deltanet", "feature_map", "relu");
  refused("rwkv7-official", "attn", {{"layers", {1}}});
  refused("rwkv7-official", "hidden_act", "relu");
  refused("rwkv7-official", "head_size", 64);
  refused("rwkv7", "attention_hidden_size", 7);
  refused("qwen3_5", "head_size", 7);
}

TEST_CASE("checkpoints: copies of the text's keys beside it have its values") {
  const Directory directory("qwen3_5-multimodal");
  const json& text = directory.config["text_config"];
  for (const char* const key : {"hidden_size", "num_hidden_layers", "vocab_size", "rms_norm_eps"}) {
    CAPTURE(key);
    CHECK(directory.error_with(key, text[key]) == "accepted");
    CHECK_THAT(directory.error_with(key, 1000), Contains("as text_config." + std::string(key)));
  }
  CHECK(directory.error_with("max_position_embeddings", text["max_position_embeddings"]) ==
        "accepted");
  CHECK_THAT(directory.error_with("rope_theta", 5.0), Contains("key \"rope_theta\": found 5.0"));
}

TEST_CASE("checkpoints: keys beside the text that it does not have are those that it uses") {
  Directory directory("qwen3_5-multimodal");
  json& text = directory.config["text_config"];
  const json rope = text.at("rope_parameters");
  const json types = text.at("layer_types");
  REQUIRE_FALSE(text.contains("rope_theta"));
  CHECK(directory.error_with("rope_theta", rope.at("rope_theta")) == "accepted");
  CHECK(directory.error_with("partial_rotary_factor", rope.at("partial_rotary_factor")) ==
        "accepted");
  CHECK_THAT(directory.error_with("partial_rotary_factor", 0.75),
             Contains("key \"partial_rotary_factor\": found 0.75, expected ") &&
                 Contains("as text_config"));
  for (const char* const key :
       {"hidden_act", "layer_types", "attn_output_gate", "sliding_window", "use_sliding_window"}) {
    text.erase(key);
  }
  CHECK(directory.error_with("hidden_act", "silu") == "accepted");
  CHECK_THAT(directory.error_with("hidden_act", "gelu"), Contains("expected \"silu\""));
  CHECK(directory.error_with("attn_output_gate", true) == "accepted");
  CHECK(directory.error_with("layer_types", types) == "accepted");
  json others = types;
  std::ranges::reverse(others);
  CHECK_THAT(directory.error_with("layer_types", others), Contains("key \"layer_types\": found"));

  CHECK_THAT(directory.error_with("sliding_window", 4096), Contains("use_sliding_window false"));
  CHECK_THAT(directory.error_with("use_sliding_window", true),
             Contains("key \"use_sliding_window\": found true"));
  directory.config["use_sliding_window"] = false;
  CHECK(directory.error_with("sliding_window", 4096) == "accepted");
}

TEST_CASE(
    "checkpoints: rope_parameters of a kind of layer are refused unless they equal those in use") {
  const Directory directory("qwen3_5");
  const json used = directory.config.at("rope_parameters");
  const auto error = [&](const json& value) {
    return directory.error_with("rope_parameters/full_attention", value);
  };
  CHECK(error(used) == "accepted");
  CHECK(error({{"rope_type", "default"}}) == "accepted");
  CHECK_THAT(error({{"rope_type", "yarn"}, {"factor", 4.0}}),
             Contains("key \"rope_parameters.full_attention.rope_type\": found \"yarn\""));
  CHECK_THAT(error({{"rope_theta", 5.0}}),
             Contains("key \"rope_parameters.full_attention.rope_theta\": found 5.0"));
  CHECK_THAT(error({{"partial_rotary_factor", 0.75}}),
             Contains("\"rope_parameters.full_attention.partial_rotary_factor\": found 0.75"));
  CHECK_THAT(error({{"factor", 4.0}}), Contains("rope_parameters.full_attention.factor"));
}

TEST_CASE("checkpoints: keys of the rotation beside rope_parameters are copies of those within") {
  const Directory directory("qwen3_5");
  REQUIRE(directory.config.contains("rope_parameters"));
  Directory both("qwen3_5");  // the inner ones win
  both.config["rope_theta"] = 5.0;
  both.config["partial_rotary_factor"] = 0.5;
  both.config["rope_type"] = "default";
  CHECK(both.warnings().empty());
  CHECK(outputs_of(both.path()) == outputs_of(golden_of("families/qwen3_5")));
  CHECK_THAT(directory.error_with("rope_type", "yarn"), Contains("\"rope_type\": found \"yarn\""));
  CHECK_THAT(directory.error_with("rope_parameters/rope_type", "yarn"),
             Contains("expected \"default\""));
  Directory sections("qwen3_5");
  sections.config["rope_parameters"]["mrope_section"] = {11, 11, 10};
  CHECK_THAT(sections.error_with("mrope_section", {1, 1, 0}),
             Contains("\"mrope_section\": found [1,1,0], expected [11,11,10]"));
  CHECK(sections.error_with("mrope_section", {11, 11, 10}) == "accepted");
}

TEST_CASE("checkpoints: Infinity and NaN are read, and only a time step may be infinite") {
  const Directory directory("rwkv7");
  const auto error = [&](const std::string& more) {
    std::string text = directory.config.dump();
    text.insert(1, more + ",");
    directory.write(text);
    return error_of_loading(directory.path());
  };
  CHECK(error("\"time_step_limit\": [0.0, Infinity]") == "accepted");
  CHECK(error("\"x\": \"Infinity \\\" NaN\"") == "accepted");
  const auto model = Transformer::load(directory.path(), {});
  REQUIRE(model->warnings().size() == 1);
  CHECK(json::accept(model->config_json()));
  CHECK(error("\"time_step_limit\": [-Infinity, Infinity]") == "accepted");
  CHECK_THAT(Transformer::load(directory.path(), {})->warnings().at(0),
             Contains("\"time_step_limit\"") && Contains("Infinity"));
  CHECK(json::accept(Transformer::load(directory.path(), {})->config_json()));
  CHECK_THAT(error("\"time_step_limit\": [0.0, NaN]"),
             Contains("key \"time_step_limit\": found NaN, expected a finite number"));
  CHECK_THAT(error("\"norm_eps\": Infinity"), Contains("key \"norm_eps\""));
  CHECK_THAT(error("\"new\": {\"inner\": [-Infinity]}"),
             Contains("key \"new.inner\": found -Infinity, expected a finite number"));
  CHECK_THAT(error("\"x\": Infinite"), Contains("not JSON"));
  CHECK_THAT(error("\"x\": -NaN"), Contains("not JSON"));
}

TEST_CASE("checkpoints: each key that is refused is in docs/models.md") {
  const std::string page = text_at(fs::path(LINTEL_TEST_DATA).parent_path() / "docs" / "models.md");
  for (const std::string_view key : refused_checkpoint_keys()) {
    CAPTURE(key);
    CHECK_THAT(page, Contains("`" + std::string(key) + "`"));
  }
  for (const std::string_view key : refused_gguf_keys()) {
    CAPTURE(key);
    CHECK_THAT(page, Contains("`" + std::string(key) + "`"));
  }
}

TEST_CASE("GGUF files: keys and tensors that Ollama's converter adds change nothing") {
  GgufVariant variant("qwen35-f32.gguf");
  const std::string a = "qwen35.";
  variant.set(a + "rope.dimension_sections", {1, 1, 0});
  variant.set(a + "mrope_sections", {1, 1, 0});
  variant.set(a + "rope.mrope_section", {1, 1, 0});
  variant.set(a + "rope.mrope_interleaved", true);
  variant.set(a + "image_token_id", 5u);
  variant.set(a + "vision_start_token_id", 6u);
  variant.set(a + "vision_end_token_id", 7u);
  variant.set(a + "ssm.v_head_reordered", true);
  variant.set(a + "rope.scaling.type", "none");
  variant.set(a + "rope.scaling.factor", 4.0f);
  variant.set(a + "attention.head_count_kv", {0, 0, 0, 2});
  variant.set(a + "vision.block_count", 2u);
  variant.set(a + "vision.patch_size", 16u);
  for (const int layer : {0, 1, 2}) {
    const std::string name = "blk." + std::to_string(layer) + ".ssm_dt";
    variant.rename(name + ".bias", name);
  }
  variant.add("v.blk.0.attn_q.weight", {8, 8});
  variant.add("mtp.fc.weight", {8, 8});
  const fs::path file = variant.write();
  CHECK(outputs_of(file) == outputs_of(golden_of("gguf/qwen35-f32.gguf")));
  const auto model = Transformer::load(file, {});
  REQUIRE(model->warnings().size() == 1);
  CHECK_THAT(model->warnings()[0], Contains("text only: 1 tensors of a vision tower") &&
                                       Contains("and 1 of a draft head (mtp) are ignored"));
  variant.add("v2.weight", {8});
  CHECK_THAT(variant.error(), Contains("tensor \"v2.weight\": surplus"));
}

namespace {

// Value heads from the tiled order, in which place m * key_heads + g holds head g * each + m, into
// the grouped one. count: values of each head, in `rows` rows of the tensor's bytes.
void group_heads(std::string& bytes, std::size_t rows, std::size_t before, std::size_t count,
                 std::size_t key_heads, std::size_t each) {
  const std::size_t row_bytes = bytes.size() / rows;
  for (std::size_t r = 0; r < rows; ++r) {
    char* const row = bytes.data() + r * row_bytes + before * sizeof(float);
    const std::string tiled(row, key_heads * each * count * sizeof(float));
    for (std::size_t g = 0; g < key_heads; ++g) {
      for (std::size_t m = 0; m < each; ++m) {
        std::memcpy(row + (g * each + m) * count * sizeof(float),
                    tiled.data() + (m * key_heads + g) * count * sizeof(float),
                    count * sizeof(float));
      }
    }
  }
}

}  // namespace

TEST_CASE("GGUF files: value heads that were not reordered read key heads in groups") {
  GgufVariant variant("qwen35-f32.gguf");
  const GgufFile golden(golden_of("gguf/qwen35-f32.gguf"));
  const auto number = [&](const char* key) {
    return static_cast<std::size_t>(golden.integer(std::string("qwen35.") + key));
  };
  const std::size_t key_heads = number("ssm.group_count");
  const std::size_t value_heads = number("ssm.time_step_rank");
  const std::size_t each = value_heads / key_heads;
  REQUIRE(each > 1);
  const std::size_t width = number("embedding_length");
  const std::size_t values = number("ssm.inner_size") / value_heads;
  const std::size_t keys = 2 * key_heads * number("ssm.state_size");
  for (const int layer : {0, 1, 2}) {
    const auto bytes = [&](const char* name) -> std::string& {
      return variant.tensors.at("blk." + std::to_string(layer) + "." + name).bytes;
    };
    const auto rows = [&](const char* name, std::size_t before, std::size_t count) {
      group_heads(bytes(name), 1, before, count, key_heads, each);
    };
    rows("attn_qkv.weight", keys * width, values * width);
    rows("attn_gate.weight", 0, values * width);
    rows("ssm_beta.weight", 0, width);
    rows("ssm_alpha.weight", 0, width);
    rows("ssm_conv1d.weight", keys * number("ssm.conv_kernel"), values * number("ssm.conv_kernel"));
    rows("ssm_a", 0, 1);
    rows("ssm_dt.bias", 0, 1);
    group_heads(bytes("ssm_out.weight"), width, 0, values, key_heads, each);
  }
  const std::vector<float> expected = outputs_of(golden_of("gguf/qwen35-f32.gguf"));
  CHECK(difference(outputs_of(variant.write()), expected) > 0.1);
  variant.set("qwen35.ssm.v_head_reordered", false);
  CHECK(difference(outputs_of(variant.write()), expected) < 1e-3);
}

TEST_CASE("GGUF files: a key of the architecture that is not known is a warning") {
  GgufVariant variant("rwkv7-f32.gguf");
  variant.set("rwkv7.new_switch", "on\n");
  variant.set("rwkv7.says_zero", 0u);
  variant.set("general.anything", 1u);
  const auto model = Transformer::load(variant.write(), {});
  REQUIRE(model->warnings().size() == 1);
  CHECK_THAT(model->warnings()[0], Contains("key \"rwkv7.new_switch\": found \"on\\n\""));
}

TEST_CASE("GGUF files: keys that change the function are refused") {
  const GgufVariant variant("qwen35-f32.gguf");
  for (const std::string_view key : refused_gguf_keys()) {
    CAPTURE(key);
    const std::string name = "qwen35." + std::string(key);
    if (key == "attention.causal") {
      CHECK_THAT(variant.error_with(name, false), Contains("key \"" + name + "\": found false"));
    } else if (key != "rope.scaling.") {
      CHECK_THAT(variant.error_with(name, 7u), Contains("key \"" + name + "\": found 7"));
    }
  }
  const std::string rope = "qwen35.rope.scaling.";
  CHECK_THAT(variant.error_with(rope + "type", "yarn"), Contains("found \"yarn\""));
  CHECK_THAT(variant.error_with(rope + "factor", 4.0f), Contains("rope.scaling.factor"));
  CHECK_THAT(variant.error_with(rope + "attn_factor", 2.0f), Contains("rope.scaling.attn_factor"));
  CHECK(variant.error_with(rope + "type", "none") == "accepted");
  CHECK(variant.error_with(rope + "type", "") == "accepted");
  CHECK(variant.error_with(rope + "factor", 1.0f) == "accepted");
  CHECK(variant.error_with("qwen35.logit_scale", 1.0f) == "accepted");
  CHECK(variant.error_with("qwen35.attention.causal", true) == "accepted");
  CHECK(variant.error_with("qwen35.rope.scale_linear", 1.0f) == "accepted");
  CHECK(variant.error_with("qwen35.swiglu_clamp_exp", 0.0f) == "accepted");
}

TEST_CASE("GGUF files: a layer is never taken for a draft head") {
  const GgufVariant variant("qwen35-f32.gguf");
  CHECK_THAT(
      variant.error_with("qwen35.nextn_predict_layers", 1u),
      Contains("key \"qwen35.nextn_predict_layers\": found 1, expected 0") && Contains("blk.3."));
  // Nor with some tensors of a head: a head has all of them.
  GgufVariant some("qwen35-f32.gguf");
  some.set("qwen35.nextn_predict_layers", 1u);
  const auto width = static_cast<std::uint64_t>(
      GgufFile(golden_of("gguf/qwen35-f32.gguf")).integer("qwen35.embedding_length"));
  some.add("blk.3.nextn.enorm.weight", {width});
  CHECK_THAT(some.error(),
             Contains("found 1, expected 0") && Contains("\"blk.3.nextn.eh_proj.weight\""));
  some.add("blk.3.nextn.eh_proj.weight", {width, 2 * width});
  CHECK_THAT(some.error(), Contains("\"blk.3.nextn.hnorm.weight\""));
  // Nor is one beyond those that the file counts left out.
  CHECK_THAT(variant.error_with("qwen35.block_count", 3u),
             Contains("tensor \"blk.3.") && Contains("surplus"));
  // A head that was taken out of the file is counted all the same.
  GgufVariant without("qwen35-f32.gguf");
  without.set("qwen35.nextn_predict_layers", 1u);
  without.set("qwen35.block_count", 5u);
  CHECK(without.error() == "accepted");
}

TEST_CASE("GGUF files: a chat template may be the name of one") {
  GgufVariant variant("qwen35-f32.gguf");
  const auto sources = [&](const char* text) {
    variant.set("tokenizer.chat_template", text);
    return ModelFiles(variant.write()).load_chat_template_sources();
  };
  CHECK_THAT(sources("chatml").templates.at("default"), Contains("<|im_start|>"));
  CHECK(sources("chatml").notes.empty());
  CHECK(sources("rwkv-world").templates.at("default") == "rwkv-world");
  CHECK(sources("{{ messages }}").templates.at("default") == "{{ messages }}");
  const ChatTemplateSources unknown = sources("llama2");
  CHECK(unknown.templates.empty());
  REQUIRE(unknown.notes.size() == 1);
  CHECK_THAT(unknown.notes[0],
             Contains("tokenizer.chat_template") && Contains("\"llama2\"") && Contains("chatml"));
}

TEST_CASE("checkpoints: a chat template may be the name of one") {
  const Directory directory("qwen3_5");
  directory.write();
  const auto sources = [&](const char* file, const std::string& text) {
    std::ofstream(directory.path() / file) << text;
    ChatTemplateSources found = ModelFiles(directory.path()).load_chat_template_sources();
    fs::remove(directory.path() / file);
    return found;
  };
  const auto in_config = [&](const std::string& text) {
    return sources("tokenizer_config.json", json{{"chat_template", text}}.dump());
  };
  CHECK_THAT(sources("chat_template.jinja", "chatml\n").templates.at("default"),
             Contains("<|im_start|>"));
  CHECK_THAT(in_config("chatml").templates.at("default"), Contains("<|im_start|>"));
  CHECK(in_config("rwkv-world").templates.at("default") == "rwkv-world");
  CHECK(in_config(" {{ messages }}\n").templates.at("default") == " {{ messages }}\n");
  for (const ChatTemplateSources& unknown :
       {sources("chat_template.jinja", "llama2\n"), in_config("llama2")}) {
    CHECK(unknown.templates.empty());
    REQUIRE(unknown.notes.size() == 1);
    CHECK_THAT(unknown.notes[0],
               Contains(directory.path().string()) && Contains("\"llama2\"") && Contains("chatml"));
  }
}

TEST_CASE("RWKV-7: the norm of heads has 64e-5 in its author's files and in GGUF") {
  // Heads of 32, for which transformers' directories have half of it with this norm_eps.
  const auto write = [](const fs::path& to, const std::string& prefix, bool scales) {
    fs::create_directory(to);
    const fs::path from = golden_of("families/rwkv7-official");
    json config = json::parse(text_at(from / "config.json"));
    config["norm_eps"] = 1e-5;
    std::ofstream(to / "config.json") << config.dump();
    const SafetensorsFile file(from / "model.safetensors");
    std::map<std::string, std::vector<float>> values;
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, tensor] : file.tensors()) {
      const std::string bare = name.starts_with("rwkv7.") ? name.substr(6) : name;
      std::vector<float>& of = values[name] = file.read_f32(name);
      const float scale = scales && name.ends_with("att.receptance.weight") ? std::sqrt(0.5f)
                          : scales && name.ends_with("att.r_k")             ? std::sqrt(2.0f)
                                                                            : 1.0f;
      for (float& value : of) value *= scale;
      tensors.push_back(
          {.name = bare == name ? name : prefix + bare, .shape = tensor.shape, .values = of});
    }
    write_safetensors(to / "model.safetensors", tensors);
  };
  const TemporaryDirectory directory;
  write(directory.path() / "author", "", false);
  write(directory.path() / "plain", "rwkv7.", false);
  write(directory.path() / "scaled", "rwkv7.", true);
  const std::vector<float> author = outputs_of(directory.path() / "author");
  CHECK(difference(author, outputs_of(directory.path() / "plain")) > 1e-3);
  CHECK(difference(author, outputs_of(directory.path() / "scaled")) < 2e-5);
  GgufVariant gguf("rwkv7-f32.gguf");
  gguf.set("rwkv7.attention.layer_norm_epsilon", 1e-5f);
  CHECK(difference(author, outputs_of(gguf.write())) < 2e-5);
}

}  // namespace lintel::testing
