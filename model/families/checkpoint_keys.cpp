// SPDX-License-Identifier: Apache-2.0
#include "model/families/checkpoint_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/config/config.h"
#include "model/core/errors.h"

namespace lintel {

using nlohmann::json;

namespace {

// Keys that programs write for every model: names, ids, types in memory, how it was trained, and
// defaults of generation and of other tasks.
constexpr std::string_view kIgnored[] = {
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "attn_mode",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "context_length",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "generation_config",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_window_layers",
    "min_length",
    "min_p",
    "model_name",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
};
constexpr std::string_view kIgnoredPrefixes[] = {"_attn_implementation", "unsloth_"};

// Keys that change the function of a model and are not served. `neutral`: the JSON text
// of a value with which it changes nothing, besides those that say nothing; empty: there is none.
struct RefusedKey {
  std::string_view name;
  std::string_view neutral = "";
  std::string_view other_neutral = "";
};
constexpr RefusedKey kRefused[] = {
    // Weights in forms of their own.
    {"bits"},
    {"compression_config"},
    {"quantization"},
    {"quant_method"},
    {"quantization_config"},
    // Adapters that are part of a model.
    {"adapters"},
    {"lora_alpha"},
    {"peft_type"},
    // Factors and bounds of values.
    {"attention_in_multiplier", "1"},
    {"attention_multiplier"},
    {"attention_out_multiplier", "1"},
    {"attention_scale"},
    {"attn_logit_softcapping"},
    {"clip_qkv"},
    {"dim_model_base"},
    {"embedding_multiplier", "1"},
    {"embedding_scale", "1"},
    {"final_logit_softcapping"},
    {"key_multiplier", "1"},
    {"lm_head_multiplier", "1"},
    {"logit_scale", "1"},
    {"logit_softcap"},
    {"logits_scaling", "1"},
    {"mlp_multipliers"},
    {"query_pre_attn_scalar"},
    {"residual_multiplier", "1"},
    {"scale_depth"},
    {"scale_emb", "1"},
    {"ssm_in_multiplier", "1"},
    {"ssm_multipliers"},
    {"ssm_out_multiplier", "1"},
    // Experts, and how they are chosen.
    {"expert_layer_offset"},
    {"expert_layer_period"},
    {"first_k_dense_replace"},
    {"moe_layer_freq", "1"},
    {"moe_num_experts"},
    {"n_group", "1"},
    {"n_routed_experts"},
    {"n_shared_experts"},
    {"num_experts"},
    {"num_local_experts"},
    {"num_shared_experts"},
    {"routed_scaling_factor", "1"},
    {"scoring_func", "\"softmax\""},
    {"topk_group", "1"},
    {"topk_method", "\"greedy\""},
    // Attention of other kinds, and which layers have it.
    {"alibi"},
    {"attention_chunk_size"},
    {"attention_sinks"},
    {"attn_layer_indices"},
    {"attnres_block_size"},
    {"hybrid_override_pattern"},
    {"kv_lora_rank"},
    {"layer_types"},
    {"layers_block_type"},
    {"no_rope_layer_interval"},
    {"no_rope_layers"},
    {"position_embedding_type", "\"rope\""},
    {"q_lora_rank"},
    {"rope_local_base_freq"},
    {"rope_parameters"},
    {"rope_scaling"},
    {"rope_scaling_factor", "1"},
    {"rope_scaling_type", "\"none\"", "\"default\""},
    {"sliding_window_pattern"},
    {"use_attention_sinks"},
    {"window_size"},
    // Layers of other kinds.
    {"activation_function"},
    {"add_cross_attention"},
    {"apply_residual_connection_post_layernorm"},
    {"cross_attention_hidden_size"},
    {"hidden_activation"},
    {"is_encoder_decoder"},
    {"mlp_bias"},
    {"parallel_residual"},
    {"pruned_heads"},
    {"use_bias"},
    {"use_parallel_residual"},
};

bool is_ignored(std::string_view key) {
  return std::ranges::find(kIgnored, key) != std::end(kIgnored) ||
         std::ranges::any_of(kIgnoredPrefixes,
                             [&](std::string_view prefix) { return key.starts_with(prefix); });
}

bool says_nothing(const json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0.0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

bool is_neutral(const RefusedKey& key, const json& value) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{key.neutral, key.other_neutral},
      [&](std::string_view text) { return !text.empty() && value == json::parse(text); });
}

constexpr const char* kNotServed =
    "no such key: it changes what is computed, and that is not served";

}  // namespace

CheckpointKeys::CheckpointKeys(const json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (object.is_object()) return;
  throw ModelError(file_ + ": found " + found_text(object) + " at \"" + path_ +
                   "\", expected an object");
}

void CheckpointKeys::fail(const std::string& key, const std::string& expected) const {
  const auto found = object_.find(key);
  throw ModelError(file_ + ": key " + quote(path_ + key) + ": found " +
                   (found == object_.end() ? "nothing" : found_text(*found)) + ", expected " +
                   expected);
}

const json* CheckpointKeys::find(const std::string& key) {
  known_.insert(key);
  read_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> CheckpointKeys::integer(const std::string& key, std::int64_t low,
                                                    std::int64_t high) {
  const json* const value = find(key);
  if (value == nullptr) return {};
  const double number = value->is_number() ? value->get<double>() : NAN;
  const bool is_whole = std::trunc(number) == number;  // 4.0 is written for 4
  const bool is_in_range =
      number >= static_cast<double>(low) && number <= static_cast<double>(high);
  if (!is_whole || !is_in_range) fail(key, whole_number_text(low, high));
  return static_cast<std::int64_t>(number);
}

std::int64_t CheckpointKeys::integer(const std::string& key, std::int64_t low, std::int64_t high,
                                     std::int64_t if_absent) {
  uses(key, if_absent);
  return integer(key, low, high).value_or(if_absent);
}

std::int64_t CheckpointKeys::required(const std::string& key, std::int64_t low, std::int64_t high) {
  const std::optional<std::int64_t> number = integer(key, low, high);
  if (!number) fail(key, whole_number_text(low, high));
  return *number;
}

double CheckpointKeys::positive(const std::string& key, double high, double if_absent) {
  uses(key, if_absent);
  const json* const value = find(key);
  if (value == nullptr) return if_absent;
  const double number = value->is_number() ? value->get<double>() : 0.0;
  if (!(static_cast<float>(number) > 0.0f) || !(number <= high)) {
    fail(key, "a number above 0, at most " + json(high).dump());
  }
  return number;
}

bool CheckpointKeys::boolean(const std::string& key, bool if_absent) {
  uses(key, if_absent);
  const json* const value = find(key);
  if (value == nullptr) return if_absent;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

void CheckpointKeys::only(const std::string& key, std::initializer_list<const char*> texts) {
  for (const char* const text : texts) uses(key, text);
  const json* const value = find(key);
  if (value == nullptr) return;
  std::string expected;
  for (const char* const text : texts) {
    if (value->is_string() && value->get_ref<const std::string&>() == text) return;
    expected += (expected.empty() ? "\"" : " or \"") + std::string(text) + "\"";
  }
  fail(key, expected);
}

void CheckpointKeys::only(const std::string& key, bool value) {
  if (boolean(key, value) != value) fail(key, value ? "true" : "false");
}

void CheckpointKeys::ignore(std::initializer_list<const char*> keys) {
  known_.insert(keys.begin(), keys.end());
}

void CheckpointKeys::ignore_prefix(const std::string& prefix) {
  for (const auto& [key, value] : object_.items()) {
    if (key.starts_with(prefix)) known_.insert(key);
  }
}

void CheckpointKeys::refuse(std::initializer_list<const char*> keys) {
  for (const char* const key : keys) {
    const json* const value = find(key);
    if (value != nullptr && !says_nothing(*value)) fail(key, kNotServed);
  }
}

void CheckpointKeys::same(const std::string& key, const json& value, const std::string& as) {
  const json* const found = find(key);
  if (found != nullptr && *found != value) fail(key, found_text(value) + ", as " + as + " has");
}

void CheckpointKeys::uses(const std::string& key, json value) {
  used_[key].push_back(std::move(value));
}

void CheckpointKeys::check_copies(const CheckpointKeys& inner) {
  const std::string object = inner.path_.substr(0, inner.path_.size() - 1);
  for (const auto& [key, value] : object_.items()) {
    if (known_.contains(key) || !inner.read_.contains(key) || says_nothing(value)) continue;
    const auto found = inner.object_.find(key);
    const bool is_inside = found != inner.object_.end() && !found->is_null();
    // Windows beside it alone are as those of any object.
    if (!is_inside && (key == "sliding_window" || key == "use_sliding_window")) continue;
    known_.insert(key);
    const auto used = inner.used_.find(key);
    const bool is_used =
        used != inner.used_.end() && std::ranges::find(used->second, value) != used->second.end();
    if (is_used || (is_inside && *found == value)) continue;
    if (is_inside) fail(key, found_text(*found) + ", as " + inner.path_ + key + " has");
    if (used == inner.used_.end()) fail(key, "it in " + object + ", which has none");
    fail(key, found_text(used->second.back()) + ", as " + object + " has without it");
  }
}

void CheckpointKeys::finish(std::vector<UnknownKey>& unknown) {
  only("use_sliding_window", false);
  const bool is_copy = known_.contains("sliding_window");
  const json* const window = find("sliding_window");
  if (!is_copy && window != nullptr && !says_nothing(*window) &&
      find("use_sliding_window") == nullptr) {
    fail("sliding_window",
         "null, or use_sliding_window false beside it: " + std::string(kNotServed));
  }
  for (const auto& [key, value] : object_.items()) {
    if (known_.contains(key) || is_ignored(key) || says_nothing(value)) continue;
    const auto refused = std::ranges::find(kRefused, key, &RefusedKey::name);
    if (refused == std::end(kRefused)) {
      unknown.push_back({.name = path_ + key, .found = found_text(value)});
    } else if (!is_neutral(*refused, value)) {
      fail(key, kNotServed);
    }
  }
}

std::vector<std::string_view> refused_checkpoint_keys() {
  std::vector<std::string_view> names = {"sliding_window", "use_sliding_window"};
  for (const RefusedKey& refused : kRefused) names.push_back(refused.name);
  return names;
}

}  // namespace lintel
