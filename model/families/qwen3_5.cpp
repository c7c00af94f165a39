// SPDX-License-Identifier: Apache-2.0
// Qwen3.5 and Qwen3-Next: three layers of four are gated delta networks, the fourth gated softmax
// attention; channels are mixed by a gated layer or by a mixture of experts. transformers'
// model_types qwen3_5_text, qwen3_5_moe_text and qwen3_next, and of directories with a vision tower
// qwen3_5 and qwen3_5_moe, of which the text is served.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/families/checkpoint_keys.h"
#include "model/families/family.h"
#include "model/families/gguf_keys.h"
#include "model/families/tensor_reader.h"
#include "model/layers/mixers/experts.h"
#include "model/layers/mixers/gated_delta.h"
#include "model/layers/mixers/gated_softmax.h"
#include "model/layers/mixers/swiglu.h"

namespace lintel {
namespace qwen3_5 {
namespace {

using nlohmann::json;

constexpr const char* kModelTypes[] = {"qwen3_5", "qwen3_5_text"};
constexpr const char* kMoeModelTypes[] = {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"};
constexpr const char* kArchitecture = "qwen35";
constexpr const char* kMoeArchitecture = "qwen35moe";

constexpr std::int64_t kMaxExperts = 4096;
// Window and cache type of the draft head's attention. The head proposes tokens that the model
// checks, and starts with each request.
constexpr std::size_t kDraftWindow = 512;
constexpr KvType kDraftKvType = KvType::kBf16;

enum class Kind { kDense, kMoe, kNext };  // of names and defaults: Qwen3.5's two, Qwen3-Next's

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kDense:
      return "qwen3_5";
    case Kind::kMoe:
      return "qwen3_5_moe";
    case Kind::kNext:
      return "qwen3_next";
  }
  return "";
}

Kind kind_of(const Checkpoint& checkpoint) {
  if (checkpoint.gguf != nullptr) {
    const bool is_moe = checkpoint.gguf->text("general.architecture") == kMoeArchitecture;
    return is_moe ? Kind::kMoe : Kind::kDense;
  }
  const json& type = checkpoint.config->at("model_type");
  if (type == "qwen3_next") return Kind::kNext;
  const bool is_moe =
      std::ranges::any_of(kMoeModelTypes, [&](const char* const name) { return type == name; });
  return is_moe ? Kind::kMoe : Kind::kDense;
}

// Shape of layers that have experts.
struct ExpertsShape {
  std::size_t experts = 0;       // N
  std::size_t chosen = 0;        // k
  std::size_t width = 0;         // FM
  std::size_t shared_width = 0;  // FS
  bool is_normalized = true;
};

// The shape that the keys of the text model describe.
struct Shape {
  std::size_t vocabulary = 0;
  std::size_t width = 0;     // E
  std::size_t ff_width = 0;  // F of layers without experts
  std::int64_t max_length = 0;
  double eps = 0.0;
  bool has_attention_bias = false;
  bool is_tied = false;
  bool is_gguf = false;
  std::int64_t draft_layers = 1;  // of the draft head, if the checkpoint has one; 1 is served
  Kind kind = Kind::kDense;
  std::vector<bool> is_full;      // [layers]
  std::vector<bool> has_experts;  // [layers]
  GatedSoftmaxShape full;
  GatedDeltaShape linear;
  ExpertsShape experts;
};

void read_layer_types(CheckpointKeys& keys, std::size_t layers, std::vector<bool>& is_full) {
  const auto interval =
      static_cast<std::size_t>(keys.integer("full_attention_interval", 1, kMaxLayers, 4));
  const json* const types = keys.find("layer_types");
  if (types == nullptr) {
    json used = json::array();
    for (std::size_t i = 0; i < layers; ++i) {
      is_full.push_back((i + 1) % interval == 0);
      used.push_back(is_full.back() ? "full_attention" : "linear_attention");
    }
    keys.uses("layer_types", std::move(used));
    return;
  }
  const std::string expected = "a list of " + std::to_string(layers) +
                               " texts, each \"linear_attention\" or \"full_attention\"";
  if (!types->is_array() || types->size() != layers) keys.fail("layer_types", expected);
  for (const json& type : *types) {
    if (type != "linear_attention" && type != "full_attention") keys.fail("layer_types", expected);
    is_full.push_back(type == "full_attention");
  }
}

// Reads `rope_parameters`, `rope_scaling`, or an object within them that stands for a kind of
// layer.
void read_rope_object(CheckpointKeys& rope, double& theta, double& factor,
                      std::vector<UnknownKey>& unknown) {
  theta = rope.positive("rope_theta", 1e12, theta);
  factor = rope.positive("partial_rotary_factor", 1.0, factor);
  rope.only("rope_type", {"default"});
  rope.only("type", {"default"});
  // A text has one position in all three sections.
  rope.ignore({"mrope_section", "mrope_interleaved"});
  rope.ignore({"original_max_position_embeddings", "truncate"});
  const std::initializer_list<const char*> scaling = {
      "factor",       "attention_factor", "beta_fast",       "beta_slow",        "mscale",
      "short_factor", "long_factor",      "low_freq_factor", "high_freq_factor", "mscale_all_dim"};
  // Factors count for the types that scale: a file that names the type means none of them.
  const bool is_named = rope.find("rope_type") != nullptr || rope.find("type") != nullptr;
  is_named ? rope.ignore(scaling) : rope.refuse(scaling);
  rope.finish(unknown);
}

// Refuses objects of kinds of layers within `object`, as transformers writes them where kinds
// differ, unless they are what is used.
void check_rope_kinds(CheckpointKeys& rope, const json& object, const std::string& file,
                      const std::string& path, double theta, double factor,
                      std::vector<UnknownKey>& unknown) {
  for (const auto& [kind, value] : object.items()) {
    if (!value.is_object() || value.empty()) continue;
    rope.ignore({kind.c_str()});
    CheckpointKeys of_kind(value, file, path + kind + ".");
    double own_theta = theta;
    double own_factor = factor;
    read_rope_object(of_kind, own_theta, own_factor, unknown);
    of_kind.same("rope_theta", theta, path.substr(0, path.size() - 1));
    of_kind.same("partial_rotary_factor", factor, path.substr(0, path.size() - 1));
  }
}

void read_rope(CheckpointKeys& keys, const std::string& file, const std::string& path,
               GatedSoftmaxShape& full, std::vector<UnknownKey>& unknown) {
  double theta = keys.positive("rope_theta", 1e12, 10000.0);
  double factor = keys.positive("partial_rotary_factor", 1.0, 0.25);
  for (const char* const name : {"rope_scaling", "rope_parameters"}) {
    const json* const value = keys.find(name);
    if (value == nullptr) continue;
    CheckpointKeys rope(*value, file, path + name + ".");
    check_rope_kinds(rope, *value, file, path + name + ".",
                     rope.positive("rope_theta", 1e12, theta),
                     rope.positive("partial_rotary_factor", 1.0, factor), unknown);
    read_rope_object(rope, theta, factor, unknown);
    // Beside the object they are copies.
    for (const char* const key : {"rope_type", "mrope_section", "mrope_interleaved"}) {
      const auto inside = value->find(key);
      if (inside != value->end() && !inside->is_null()) keys.same(key, *inside, path + name);
    }
  }
  keys.only("rope_type", {"default"});
  keys.ignore({"mrope_section", "mrope_interleaved"});
  keys.uses("rope_theta", theta);
  keys.uses("partial_rotary_factor", factor);
  full.rope_theta = theta;
  full.rotated =
      static_cast<std::size_t>(std::floor(static_cast<double>(full.head_width) * factor));
  if (full.rotated < 2 || full.rotated % 2 != 0) {
    keys.fail("partial_rotary_factor", "an even number of rotated values, at least 2, of the " +
                                           std::to_string(full.head_width) + " of a head");
  }
}

// Sets which layers have experts, by the keys that only Qwen3-Next has.
void read_sparse_layers(CheckpointKeys& keys, std::vector<bool>& has_experts) {
  const auto layers = static_cast<std::int64_t>(has_experts.size());
  const auto step = static_cast<std::size_t>(keys.integer("decoder_sparse_step", 1, kMaxLayers, 1));
  for (std::size_t i = 0; i < has_experts.size(); ++i) has_experts[i] = (i + 1) % step == 0;
  const json* const dense = keys.find("mlp_only_layers");
  if (dense == nullptr) return;
  const std::string expected = "a list of layers, 0 to " + std::to_string(layers - 1);
  if (!dense->is_array()) keys.fail("mlp_only_layers", expected);
  for (const json& layer : *dense) {
    const std::int64_t number = layer.is_number_integer() ? layer.get<std::int64_t>() : -1;
    if (number < 0 || number >= layers) keys.fail("mlp_only_layers", expected);
    has_experts[static_cast<std::size_t>(number)] = false;
  }
}

void read_experts(CheckpointKeys& keys, Shape& shape) {
  shape.has_experts.assign(shape.is_full.size(), shape.kind != Kind::kDense);
  if (shape.kind == Kind::kDense) {
    keys.ignore({"moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok",
                 "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"});
    return;
  }
  const bool is_next = shape.kind == Kind::kNext;
  const std::int64_t experts =
      keys.integer("num_experts", is_next ? 0 : 1, kMaxExperts, is_next ? 512 : 256);
  const auto width = [&](const char* key) {
    return static_cast<std::size_t>(keys.integer(key, 1, kMaxFeedForwardWidth, 512));
  };
  shape.experts = {.experts = static_cast<std::size_t>(experts),
                   .width = width("moe_intermediate_size"),
                   .shared_width = width("shared_expert_intermediate_size")};
  if (is_next) {
    shape.experts.is_normalized = keys.boolean("norm_topk_prob", true);
    read_sparse_layers(keys, shape.has_experts);
  } else {
    keys.only("norm_topk_prob", true);
    keys.refuse({"mlp_only_layers"});
    if (keys.integer("decoder_sparse_step", 0, kMaxLayers, 1) > 1) {
      keys.fail("decoder_sparse_step", "1: every layer has experts");
    }
  }
  if (experts == 0) {
    shape.has_experts.assign(shape.is_full.size(), false);
    keys.ignore({"num_experts_per_tok"});
    return;
  }
  // A default above the number of experts is refused, too.
  shape.experts.chosen =
      static_cast<std::size_t>(keys.integer("num_experts_per_tok", 1, experts, is_next ? 10 : 8));
  if (shape.experts.chosen > shape.experts.experts) {
    keys.fail("num_experts_per_tok", "at most num_experts, " + std::to_string(experts));
  }
}

void ignore_vision_keys(CheckpointKeys& keys) {
  keys.ignore({"vision_config", "image_token_id", "video_token_id", "audio_token_id",
               "vision_start_token_id", "vision_end_token_id", "vision_token_id"});
}

Shape read_text(CheckpointKeys& keys, const std::string& file, const std::string& path, Kind kind,
                std::vector<UnknownKey>& unknown) {
  Shape shape;
  shape.kind = kind;
  const auto required = [&](const char* key, std::int64_t high) {
    return static_cast<std::size_t>(keys.required(key, 1, high));
  };
  const auto number = [&](const char* key, std::int64_t high, std::int64_t if_absent) {
    return static_cast<std::size_t>(keys.integer(key, 1, high, if_absent));
  };
  shape.vocabulary = required("vocab_size", kMaxVocabSize);
  shape.width = required("hidden_size", kMaxModelWidth);
  const std::size_t layers = required("num_hidden_layers", kMaxLayers);
  shape.full = {.heads = number("num_attention_heads", kMaxHeads, 16),
                .kv_heads = number("num_key_value_heads", kMaxHeads, kind == Kind::kNext ? 2 : 4),
                .head_width = number("head_dim", kMaxHeadWidth, 256),
                .has_gate = true};
  shape.linear = {.key_heads = number("linear_num_key_heads", kMaxHeads, 16),
                  .value_heads = number("linear_num_value_heads", kMaxHeads, 32),
                  .key_width = number("linear_key_head_dim", kMaxHeadWidth, 128),
                  .value_width = number("linear_value_head_dim", kMaxHeadWidth, 128),
                  .taps = number("linear_conv_kernel_dim", 64, 4)};
  if (shape.full.heads % shape.full.kv_heads != 0) {
    keys.fail("num_attention_heads",
              "a multiple of num_key_value_heads, " + std::to_string(shape.full.kv_heads));
  }
  if (shape.linear.value_heads % shape.linear.key_heads != 0) {
    keys.fail("linear_num_value_heads",
              "a multiple of linear_num_key_heads, " + std::to_string(shape.linear.key_heads));
  }
  read_layer_types(keys, layers, shape.is_full);
  read_experts(keys, shape);
  const bool has_dense = std::ranges::find(shape.has_experts, false) != shape.has_experts.end();
  shape.ff_width = has_dense ? required("intermediate_size", kMaxFeedForwardWidth)
                             : number("intermediate_size", kMaxFeedForwardWidth, 1);
  read_rope(keys, file, path, shape.full, unknown);
  shape.eps = keys.positive("rms_norm_eps", kMaxEpsilon, 1e-6);
  shape.has_attention_bias = keys.boolean("attention_bias", false);
  shape.is_tied = keys.boolean("tie_word_embeddings", false);
  shape.max_length = keys.integer("max_position_embeddings", 1, kMaxMaxLength, 32768);
  keys.only("hidden_act", {"silu"});
  keys.only("attn_output_gate", true);
  keys.only("output_gate_type", {"swish", "silu"});
  keys.same("head_size", shape.full.head_width, "head_dim");
  keys.ignore({"mamba_ssm_dtype", "language_model_only"});
  ignore_vision_keys(keys);
  shape.draft_layers = keys.integer("mtp_num_hidden_layers", 0, kMaxLayers, 1);
  if (keys.boolean("mtp_use_dedicated_embeddings", false)) shape.draft_layers = 0;  // not served
  keys.ignore_prefix("mtp_");
  keys.finish(unknown);
  return shape;
}

// The number of layers, without those of a draft head, which follow.
std::size_t count_layers(ArchitectureKeys& keys, const GgufFile& file, std::int64_t& draft_layers) {
  const std::int64_t blocks = keys.required("block_count", 1, kMaxLayers);
  draft_layers = keys.integer("nextn_predict_layers", 0, kMaxLayers).value_or(0);
  if (draft_layers >= blocks) keys.fail("nextn_predict_layers", "fewer than block_count");
  for (std::int64_t i = blocks - draft_layers; i < blocks; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    const auto has = [&](const std::string& prefix) {
      return std::ranges::any_of(file.tensors(), [&](const TensorInfo& tensor) {
        return tensor.name.starts_with(prefix);
      });
    };
    if (!has(block)) continue;
    for (const char* const name : {"eh_proj", "enorm", "hnorm"}) {
      const std::string tensor = block + "nextn." + name + ".weight";
      if (file.find(tensor) != nullptr) continue;
      keys.fail("nextn_predict_layers", "0: tensors " + quote(block + "*") +
                                            " are of a layer: a draft head has " + quote(tensor));
    }
  }
  return static_cast<std::size_t>(blocks - draft_layers);
}

void read_layer_types(ArchitectureKeys& keys, std::size_t layers, std::vector<bool>& is_full) {
  const auto interval =
      static_cast<std::size_t>(keys.integer("full_attention_interval", 1, kMaxLayers).value_or(4));
  const GgufValue* const recurrent = keys.find("attention.recurrent_layers");
  if (recurrent != nullptr && recurrent->size() < layers) {
    keys.fail("attention.recurrent_layers", "true or false for each layer");
  }
  for (std::size_t i = 0; i < layers; ++i) {
    if (recurrent == nullptr) {
      is_full.push_back((i + 1) % interval == 0);
      continue;
    }
    const auto is_recurrent = recurrent->boolean(i);
    if (!is_recurrent) keys.fail("attention.recurrent_layers", "true or false for each layer");
    is_full.push_back(!*is_recurrent);
  }
}

void read_experts(ArchitectureKeys& keys, ExpertsShape& experts) {
  const auto number = [&](const char* key, std::int64_t high) {
    return static_cast<std::size_t>(keys.required(key, 1, high));
  };
  experts.experts = number("expert_count", kMaxExperts);
  experts.chosen = number("expert_used_count", static_cast<std::int64_t>(experts.experts));
  experts.width = number("expert_feed_forward_length", kMaxFeedForwardWidth);
  experts.shared_width = number("expert_shared_feed_forward_length", kMaxFeedForwardWidth);
  keys.only("norm_top_k_prob", true);
  keys.only("expert_weights_norm", true);
}

Shape read_gguf(const GgufFile& file, Kind kind, std::vector<UnknownKey>& unknown) {
  const bool is_moe = kind == Kind::kMoe;
  ArchitectureKeys keys(file, is_moe ? kMoeArchitecture : kArchitecture);
  Shape shape;
  shape.is_gguf = true;
  shape.kind = kind;
  const auto number = [&](const char* key, std::int64_t high) {
    return static_cast<std::size_t>(keys.required(key, 1, high));
  };
  const std::size_t layers = count_layers(keys, file, shape.draft_layers);
  shape.width = number("embedding_length", kMaxModelWidth);
  shape.has_experts.assign(layers, is_moe);
  if (is_moe) {
    read_experts(keys, shape.experts);
    keys.ignore({"feed_forward_length"});
  } else {
    shape.ff_width = number("feed_forward_length", kMaxFeedForwardWidth);
  }
  shape.max_length = keys.required("context_length", 1, kMaxMaxLength);
  shape.full = {
      .heads = static_cast<std::size_t>(keys.largest("attention.head_count", 1, kMaxHeads)),
      .kv_heads = static_cast<std::size_t>(keys.largest("attention.head_count_kv", 1, kMaxHeads)),
      .head_width = number("attention.key_length", kMaxHeadWidth),
      .rotated = number("rope.dimension_count", kMaxHeadWidth),
      .rope_theta = keys.positive("rope.freq_base", 1e12, 1e7),
      .has_gate = true};
  if (number("attention.value_length", kMaxHeadWidth) != shape.full.head_width) {
    keys.fail("attention.value_length", "attention.key_length");
  }
  if (shape.full.heads % shape.full.kv_heads != 0) {
    keys.fail("attention.head_count", "a multiple of attention.head_count_kv");
  }
  if (shape.full.rotated % 2 != 0 || shape.full.rotated > shape.full.head_width) {
    keys.fail("rope.dimension_count", "an even number, at most attention.key_length");
  }
  // Converters order value heads so that head j reads key head j modulo the number of those, where
  // the file does not say that it has kept their order.
  shape.linear = {.key_heads = number("ssm.group_count", kMaxHeads),
                  .value_heads = number("ssm.time_step_rank", kMaxHeads),
                  .key_width = number("ssm.state_size", kMaxHeadWidth),
                  .value_width = 0,
                  .taps = static_cast<std::size_t>(keys.required("ssm.conv_kernel", 1, 64)),
                  .key_heads_are_tiled = keys.boolean("ssm.v_head_reordered", true)};
  const std::size_t values = number("ssm.inner_size", kMaxProjectionWidth);
  if (values % shape.linear.value_heads != 0) {
    keys.fail("ssm.inner_size", "a multiple of ssm.time_step_rank");
  }
  shape.linear.value_width = values / shape.linear.value_heads;
  if (shape.linear.value_heads % shape.linear.key_heads != 0) {
    keys.fail("ssm.time_step_rank", "a multiple of ssm.group_count");
  }
  read_layer_types(keys, layers, shape.is_full);
  shape.eps = keys.positive("attention.layer_norm_rms_epsilon", kMaxEpsilon, {});
  shape.is_tied = file.find("output.weight") == nullptr;
  shape.vocabulary = vocabulary_of(keys, file);
  // A text has one position in all sections, and no pictures.
  keys.ignore({"rope.dimension_sections", "rope.mrope_section", "rope.mrope_interleaved",
               "mrope_sections", "image_token_id", "video_token_id", "vision_start_token_id",
               "vision_end_token_id"});
  keys.ignore_prefix("vision.");
  keys.finish(unknown);
  return shape;
}

Shape read_shape(const Checkpoint& checkpoint, std::vector<UnknownKey>& unknown) {
  const Kind kind = kind_of(checkpoint);
  if (checkpoint.gguf != nullptr) return read_gguf(*checkpoint.gguf, kind, unknown);
  const std::string& file = checkpoint.config_file;
  CheckpointKeys root(*checkpoint.config, file, "");
  const json* const text = root.find("text_config");
  if (text == nullptr) return read_text(root, file, "", kind, unknown);
  CheckpointKeys keys(*text, file, "text_config.");
  switch (kind) {
    case Kind::kDense:
      keys.only("model_type", {"qwen3_5_text", "qwen3_5"});
      break;
    case Kind::kMoe:
      keys.only("model_type", {"qwen3_5_moe_text", "qwen3_5_moe"});
      break;
    case Kind::kNext:
      root.fail("text_config", "no such key in a model of type qwen3_next");
  }
  Shape shape = read_text(keys, file, "text_config.", kind, unknown);
  if (const json* const tied = root.find("tie_word_embeddings")) {
    const bool is_nested = text->contains("tie_word_embeddings");
    if (!tied->is_boolean()) root.fail("tie_word_embeddings", "true or false");
    if (is_nested && tied->get<bool>() != shape.is_tied) {
      root.fail("tie_word_embeddings", "what text_config.tie_word_embeddings says");
    }
    shape.is_tied = tied->get<bool>();
  }
  root.ignore({"model_type", "language_model_only", "mamba_ssm_dtype"});
  root.ignore_prefix("mtp_");
  ignore_vision_keys(root);
  root.check_copies(keys);
  root.finish(unknown);
  return shape;
}

// Reads the shape without a report of unknown keys, which read_config() has named.
Shape read_shape(const Checkpoint& checkpoint) {
  std::vector<UnknownKey> unknown;
  return read_shape(checkpoint, unknown);
}

ModelConfig read_config(const Checkpoint& checkpoint, std::vector<UnknownKey>& unknown) {
  const Shape shape = read_shape(checkpoint, unknown);
  ModelConfig config;
  config.family = name_of(shape.kind);
  config.vocab_size = static_cast<int>(shape.vocabulary);
  config.max_length = shape.max_length;
  config.d_model = static_cast<int>(shape.width);
  config.n_layers = static_cast<int>(shape.is_full.size());
  for (const bool is_full : shape.is_full) {
    config.mixers.push_back(is_full ? "gated_softmax" : "gated_delta");
  }
  return config;
}

// Names of tensors in a directory and in a GGUF file, without ".weight" where both end so.
constexpr std::pair<const char*, const char*> kGgufNames[] = {
    {"embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"norm", "output_norm"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"fc", "nextn.eh_proj"},
    {"pre_fc_norm_embedding", "nextn.enorm"},
    {"pre_fc_norm_hidden", "nextn.hnorm"},
};

std::string gguf_name(std::string name) {
  const std::string suffix = name.ends_with(".weight") ? ".weight" : "";
  name.resize(name.size() - suffix.size());
  for (const auto& [theirs, in_gguf] : kGgufNames) {
    if (name == theirs) return in_gguf + suffix;
  }
  return name + suffix;
}

// Names of the text's tensors.
class Names {
 public:
  // layers: of the model. Those after it are the draft head's.
  Names(const TensorReader& tensors, const WeightSource& source, bool is_gguf, std::size_t layers)
      : is_gguf_(is_gguf), layers_(layers) {
    if (is_gguf) return;
    const auto has = [&](const std::string& prefix) {
      return tensors.has(prefix + "embed_tokens.weight");
    };
    if (has("language_model.model.")) {
      throw ModelError(source.name() +
                       ": an MLX conversion: norms and convolutions are stored differently; use "
                       "the original");
    }
    if (has("model.language_model.") && has("model.")) {
      throw ModelError(source.name() +
                       ": found tensors below \"model.\" and \"model.language_model.\", expected "
                       "one of the two");
    }
    prefix_ = has("model.language_model.") ? "model.language_model." : "model.";
    draft_prefix_ = tensors.has("model.mtp.fc.weight") ? "model.mtp." : "mtp.";
  }

  std::string of(const std::string& name) const {
    return is_gguf_ ? gguf_name(name) : prefix_ + name;
  }
  std::string head() const { return is_gguf_ ? gguf_name("lm_head.weight") : "lm_head.weight"; }
  std::string of_drafts(const std::string& name) const {
    return is_gguf_ ? of_layer(layers_, name) : draft_prefix_ + name;
  }
  std::string of_draft_norm() const {
    return is_gguf_ ? of_layer(layers_, "nextn.shared_head_norm.weight") : of_drafts("norm.weight");
  }
  std::string of_layer(std::size_t layer, const std::string& name) const {
    if (!is_gguf_ && layer >= layers_) {
      return of_drafts("layers." + std::to_string(layer - layers_) + "." + name);
    }
    const std::string number = std::to_string(layer) + ".";
    return is_gguf_ ? "blk." + number + gguf_name(name) : prefix_ + "layers." + number + name;
  }

 private:
  const bool is_gguf_;
  const std::size_t layers_;
  std::string prefix_;
  std::string draft_prefix_;
};

class Builder {
 public:
  Builder(const Checkpoint& checkpoint, const Dense::Options& options, KvType kv_type)
      : shape_(with_kv_type(read_shape(checkpoint), kv_type)),
        options_(options),
        exact_(options),
        tensors_(checkpoint.tensors),
        names_(tensors_, checkpoint.tensors, shape_.is_gguf, shape_.is_full.size()) {
    exact_.weight_type = WeightType::kF32;
  }

  std::unique_ptr<const Decoder> build(std::vector<std::string>& notes) {
    auto decoder = std::make_unique<Decoder>();
    decoder->weight_type = options_.weight_type;
    decoder->width = shape_.width;
    if (std::ranges::find(shape_.is_full, true) != shape_.is_full.end()) {
      decoder->kv_type = shape_.full.kv_type;
    }
    ignore_vision_and_drafts(notes);
    for (std::size_t i = 0; i < shape_.is_full.size(); ++i) {
      decoder->layers.push_back(
          {.token_norm = norm(names_.of_layer(i, "input_layernorm.weight")),
           .token_mixer = shape_.is_full[i] ? softmax(i, shape_.full) : delta(i),
           .channel_norm = norm(names_.of_layer(i, "post_attention_layernorm.weight")),
           .channel_mixer = channel_mixer(i)});
    }
    decoder->final_norm = norm(names_.of("norm.weight"));
    if (has_drafts()) decoder->drafts = draft_head();
    tensors_.read_vocabulary({.embedding = names_.of("embed_tokens.weight"),
                              .head = names_.head(),
                              .is_tied = shape_.is_tied,
                              .rows = shape_.vocabulary},
                             options_, *decoder);
    tensors_.finish();
    decoder->num_parameters = tensors_.num_parameters();
    return decoder;
  }

 private:
  static Shape with_kv_type(Shape shape, KvType kv_type) {
    shape.full.kv_type = kv_type;
    return shape;
  }

  void ignore_vision_and_drafts(std::vector<std::string>& notes) {
    const auto starts = [](std::string_view name, std::initializer_list<const char*> prefixes) {
      for (const char* const prefix : prefixes) {
        if (name.starts_with(prefix)) return true;
      }
      return false;
    };
    const TensorReader::Ignored vision = tensors_.ignore([&](std::string_view name) {
      return shape_.is_gguf ? starts(name, {"v.", "mm."})
                            : starts(name, {"model.visual.", "visual."});
    });
    const TensorReader::Ignored drafts = tensors_.ignore([&](std::string_view name) {
      // Ollama's files have the names of directories, of a head that is not read from them.
      if (shape_.is_gguf && name.starts_with("mtp.")) return true;
      return !has_drafts() &&
             (shape_.is_gguf ? is_of_draft_block(name) : starts(name, {"mtp.", "model.mtp."}));
    });
    if (shape_.is_gguf) {
      tensors_.ignore([](std::string_view name) { return name == "rope_freqs.weight"; });
    }
    if (has_drafts()) notes.push_back("its draft head (mtp) proposes draft tokens, too");
    if (vision.count + drafts.count == 0) return;
    char gigabytes[32];
    std::snprintf(gigabytes, sizeof gigabytes, "%.1f", static_cast<double>(vision.bytes) / 1e9);
    const std::string of_drafts =
        has_drafts() && drafts.count == 0
            ? ""
            : " and " + std::to_string(drafts.count) + " of a draft head (mtp)";
    notes.push_back("text only: " + std::to_string(vision.count) + " tensors of a vision tower (" +
                    gigabytes + " GB)" + of_drafts + " are ignored");
  }

  // True if the checkpoint has a draft head that is served, of one layer and with the model's own
  // embedding and head. A partial one is an error.
  bool has_drafts() const {
    const auto has = [&](const char* const name) { return tensors_.has(names_.of_drafts(name)); };
    const bool has_own = has("nextn.embed_tokens.weight") || has("nextn.shared_head_head.weight");
    return !options_.streams && shape_.draft_layers == 1 && !has_own && has("fc.weight") &&
           has("pre_fc_norm_hidden.weight") && has("pre_fc_norm_embedding.weight") &&
           tensors_.has(names_.of_draft_norm());
  }

  std::unique_ptr<const DraftHead> draft_head() {
    const std::size_t layer = shape_.is_full.size();
    auto head = std::make_unique<DraftHead>();
    head->embedding_norm = norm(names_.of_drafts("pre_fc_norm_embedding.weight"));
    head->hidden_norm = norm(names_.of_drafts("pre_fc_norm_hidden.weight"));
    head->in = tensors_.dense(
        {{.name = names_.of_drafts("fc.weight"), .rows = shape_.width, .is_adaptable = false}},
        2 * shape_.width, options_);
    GatedSoftmaxShape attention = shape_.full;
    attention.window = kDraftWindow;
    attention.kv_type = kDraftKvType;
    Decoder& layers = head->layers;
    layers.weight_type = options_.weight_type;
    layers.width = shape_.width;
    layers.layers.push_back(
        {.token_norm = norm(names_.of_layer(layer, "input_layernorm.weight")),
         .token_mixer = softmax(layer, attention),
         .channel_norm = norm(names_.of_layer(layer, "post_attention_layernorm.weight")),
         .channel_mixer = has_draft_experts() ? experts(layer) : dense_channels(layer)});
    layers.final_norm = norm(names_.of_draft_norm());
    return head;
  }
  bool has_draft_experts() const {
    return std::ranges::find(shape_.has_experts, true) != shape_.has_experts.end();
  }

  // "blk.24.ffn_up.weight" of a model of 24 layers and a draft head.
  bool is_of_draft_block(std::string_view name) const {
    constexpr std::string_view kBlock = "blk.";
    if (!name.starts_with(kBlock)) return false;
    std::size_t block = 0;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kBlock.size(), end, block);
    return parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '.' &&
           block >= shape_.is_full.size() &&
           block - shape_.is_full.size() < static_cast<std::size_t>(shape_.draft_layers);
  }

  Dense dense(const std::vector<TensorReader::Part>& parts, WeightRole role = WeightRole::kMixer) {
    return tensors_.dense(parts, shape_.width, options_, role);
  }
  // Not those of the draft head, which reads what adapters have changed already.
  bool is_adaptable(std::size_t layer) const { return layer < shape_.is_full.size(); }

  // Directories store the gain minus 1.
  Matrix gain(const std::string& name, std::size_t width) {
    Matrix values = tensors_.vector(name, width);
    if (shape_.is_gguf) return values;
    for (float& value : values.values()) value += 1.0f;
    return values;
  }
  RowNorm norm(const std::string& name) {
    return {.gain = gain(name, shape_.width), .bias = {}, .eps = static_cast<float>(shape_.eps)};
  }

  std::unique_ptr<const Mixer> softmax(std::size_t layer, const GatedSoftmaxShape& full) {
    const auto name = [&](const std::string& of) {
      return names_.of_layer(layer, "self_attn." + of);
    };
    const auto part = [&](const std::string& of, std::size_t rows) {
      return TensorReader::Part{.name = name(of + ".weight"),
                                .rows = rows,
                                .bias = shape_.has_attention_bias ? name(of + ".bias") : "",
                                .is_adaptable = is_adaptable(layer)};
    };
    GatedSoftmaxWeights weights;
    weights.in = dense({part("q_proj", 2 * full.queries()), part("k_proj", full.keys()),
                        part("v_proj", full.keys())});
    weights.query_norm = gain(name("q_norm.weight"), full.head_width);
    weights.key_norm = gain(name("k_norm.weight"), full.head_width);
    weights.norm_eps = static_cast<float>(shape_.eps);
    weights.out = tensors_.dense({part("o_proj", shape_.width)}, full.queries(), options_);
    return std::make_unique<GatedSoftmax>(full, std::move(weights));
  }

  // Parts of a tensor that has rows of several kinds for each key head, sorted so that rows of one
  // kind are adjacent. rows: the number of each kind, for one key head.
  std::vector<TensorReader::Part> parts_by_kind(const std::string& name,
                                                const std::vector<std::size_t>& rows) const {
    const std::size_t of_head = std::reduce(rows.begin(), rows.end());
    const std::size_t heads = shape_.linear.key_heads;
    std::vector<TensorReader::Part> parts;
    std::size_t before = 0;
    for (const std::size_t count : rows) {
      for (std::size_t head = 0; head < heads; ++head) {
        parts.push_back({.name = name,
                         .rows = count,
                         .whole = {static_cast<std::int64_t>(heads * of_head),
                                   static_cast<std::int64_t>(shape_.width)},
                         .first = head * of_head + before});
      }
      before += count;
    }
    return parts;
  }
  std::vector<TensorReader::Part> parts_of_qkvz(const std::string& name) const {
    const GatedDeltaShape& linear = shape_.linear;
    const std::size_t values = linear.values() / linear.key_heads;
    return parts_by_kind(name, {linear.key_width, linear.key_width, values, values});
  }
  std::vector<TensorReader::Part> parts_of_ba(const std::string& name) const {
    const std::size_t values = shape_.linear.value_heads / shape_.linear.key_heads;
    return parts_by_kind(name, {values, values});
  }

  std::unique_ptr<const Mixer> delta(std::size_t layer) {
    const GatedDeltaShape& linear = shape_.linear;
    const auto name = [&](const std::string& of) {
      return names_.of_layer(layer, "linear_attn." + of);
    };
    GatedDeltaWeights weights;
    const bool is_fused = shape_.kind == Kind::kNext;
    weights.in = dense(
        is_fused ? parts_of_qkvz(name("in_proj_qkvz.weight"))
                 : std::vector<TensorReader::Part>{{name("in_proj_qkv.weight"), linear.channels()},
                                                   {name("in_proj_z.weight"), linear.values()}});
    // Rates feed exponentials: never in fewer bits.
    weights.rate = tensors_.dense(
        is_fused ? parts_of_ba(name("in_proj_ba.weight"))
                 : std::vector<TensorReader::Part>{{name("in_proj_b.weight"), linear.value_heads},
                                                   {name("in_proj_a.weight"), linear.value_heads}},
        shape_.width, exact_);
    const Matrix taps =
        tensors_.matrix(name("conv1d.weight"), linear.channels(), linear.taps);  // [C, 1, K]
    weights.convolution = Matrix(linear.taps, linear.channels());
    for (std::size_t c = 0; c < linear.channels(); ++c) {
      for (std::size_t k = 0; k < linear.taps; ++k) {
        weights.convolution.row(k)[c] = taps.row(c)[k];
      }
    }
    weights.decay = tensors_.vector(name("A_log"), linear.value_heads);
    // A GGUF file has -exp(A_log).
    for (float& value : weights.decay.values()) value = shape_.is_gguf ? value : -std::exp(value);
    weights.decay_bias = tensors_.vector(decay_bias_name(name("dt_bias")), linear.value_heads);
    weights.norm = tensors_.vector(name("norm.weight"), linear.value_width);
    weights.norm_eps = static_cast<float>(shape_.eps);
    weights.out =
        tensors_.dense({{name("out_proj.weight"), shape_.width}}, linear.values(), options_);
    return std::make_unique<GatedDelta>(linear, std::move(weights));
  }

  // Ollama's GGUF files leave out ".bias".
  std::string decay_bias_name(const std::string& name) const {
    const std::string bare = name.substr(0, name.rfind('.'));
    return shape_.is_gguf && !tensors_.has(name) && tensors_.has(bare) ? bare : name;
  }

  std::unique_ptr<const Mixer> channel_mixer(std::size_t layer) {
    return shape_.has_experts[layer] ? experts(layer) : dense_channels(layer);
  }
  std::unique_ptr<const Mixer> dense_channels(std::size_t layer) {
    return std::make_unique<Swiglu>(swiglu(layer, "mlp.", shape_.ff_width, is_adaptable(layer)));
  }

  // prefix: "mlp.shared_expert."; width: F of it.
  Swiglu swiglu(std::size_t layer, const std::string& prefix, std::size_t width,
                bool is_adaptable) {
    const auto part = [&](const std::string& of, std::size_t rows) {
      return TensorReader::Part{
          .name = names_.of_layer(layer, prefix + of), .rows = rows, .is_adaptable = is_adaptable};
    };
    constexpr WeightRole kRole = WeightRole::kChannels;
    Dense gate_up = dense({part("gate_proj.weight", width), part("up_proj.weight", width)}, kRole);
    return Swiglu(std::move(gate_up),
                  tensors_.dense({part("down_proj.weight", shape_.width)}, width, options_, kRole));
  }

  std::unique_ptr<const Mixer> experts(std::size_t layer) {
    const ExpertsShape& of = shape_.experts;
    ExpertsWeights weights;
    // One choice that flips changes an output: never in fewer bits.
    const auto part = [&](const std::string& name, std::size_t rows) {
      return TensorReader::Part{
          .name = names_.of_layer(layer, name), .rows = rows, .is_adaptable = is_adaptable(layer)};
    };
    weights.router = tensors_.dense(
        {part("mlp.gate.weight", of.experts), part("mlp.shared_expert_gate.weight", 1)},
        shape_.width, exact_);
    // One tensor for all experts, or for each its own.
    const std::string suffix = shape_.is_gguf ? ".weight" : "";
    const bool is_joined =
        shape_.is_gguf || tensors_.has(names_.of_layer(layer, "mlp.experts.down_proj"));
    for (std::size_t i = 0; i < of.experts; ++i) {
      weights.experts.push_back(is_joined ? expert(layer, i, suffix)
                                          : swiglu(layer, "mlp.experts." + std::to_string(i) + ".",
                                                   of.width,
                                                   /*is_adaptable=*/false));
    }
    weights.shared = swiglu(layer, "mlp.shared_expert.", of.shared_width, is_adaptable(layer));
    return std::make_unique<Experts>(of.chosen, of.is_normalized, std::move(weights));
  }

  // Expert i from tensors [N, .., ..] of all.
  Swiglu expert(std::size_t layer, std::size_t i, const std::string& suffix) {
    const std::size_t width = shape_.experts.width;
    const auto name = [&](const std::string& of) {
      return names_.of_layer(layer, "mlp.experts." + of + suffix);
    };
    const auto part = [&](const std::string& of, std::size_t rows, std::size_t cols) {
      return TensorReader::Part{
          .name = name(of),
          .rows = rows,
          .whole = {static_cast<std::int64_t>(shape_.experts.experts),
                    static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)},
          .first = i * rows};
    };
    const bool is_cut = shape_.is_gguf && !tensors_.has(name("gate_up_proj"));
    constexpr WeightRole kRole = WeightRole::kChannels;
    Dense gate_up =
        is_cut
            ? dense({part("gate_proj", width, shape_.width), part("up_proj", width, shape_.width)},
                    kRole)
            : dense({part("gate_up_proj", 2 * width, shape_.width)}, kRole);
    return Swiglu(std::move(gate_up),
                  tensors_.dense({part("down_proj", shape_.width, width)}, width, options_, kRole));
  }

  const Shape shape_;
  const Dense::Options options_;
  Dense::Options exact_;
  TensorReader tensors_;
  const Names names_;
};

std::unique_ptr<const Decoder> make(const Checkpoint& checkpoint, const Dense::Options& options,
                                    KvType kv_type, std::vector<std::string>& notes) {
  return Builder(checkpoint, options, kv_type).build(notes);
}

}  // namespace
}  // namespace qwen3_5

const ModelFamily family_qwen3_5{.model_types = qwen3_5::kModelTypes,
                                 .architecture = qwen3_5::kArchitecture,
                                 .read_config = qwen3_5::read_config,
                                 .make = qwen3_5::make};
const ModelFamily family_qwen3_5_moe{.model_types = qwen3_5::kMoeModelTypes,
                                     .architecture = qwen3_5::kMoeArchitecture,
                                     .read_config = qwen3_5::read_config,
                                     .make = qwen3_5::make};

}  // namespace lintel
