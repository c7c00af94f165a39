// SPDX-License-Identifier: Apache-2.0
#include "model/families/gguf_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/config/config.h"
#include "model/core/errors.h"

namespace lintel {
namespace {

// Keys that change the function of a model and are not served. `neutral`: with which it
// changes nothing, besides 0; NaN: there is none.
struct RefusedGgufKey {
  std::string_view name;
  double neutral = NAN;
};
constexpr RefusedGgufKey kRefusedGguf[] = {
    {"attention.clamp_kqv"},
    {"attention.kv_lora_rank"},
    {"attention.logit_softcapping"},
    {"attention.max_alibi_bias"},
    {"attention.output_scale"},
    {"attention.q_lora_rank"},
    {"attention.scale"},
    {"attention.sliding_window"},
    {"attention.temperature_scale", 1},
    {"attn_logit_softcapping"},
    {"embedding_scale", 1},
    {"expert_count"},
    {"expert_gating_func", 1},  // softmax
    {"expert_group_count", 1},
    {"expert_group_used_count", 1},
    {"expert_shared_count", 1},
    {"expert_weights_scale", 1},
    {"final_logit_softcapping"},
    {"leading_dense_block_count"},
    {"logit_scale", 1},
    {"pooling_type"},
    {"residual_scale", 1},
    {"rope.scale_linear", 1},
    {"swiglu_clamp_exp"},
    {"swiglu_clamp_shexp"},
    {"use_parallel_residual"},
};
constexpr const char* kGgufNotServed =
    "no such key: it changes what is computed, and that is not served";
// Without an effect in every architecture.
constexpr std::string_view kIgnoredGguf[] = {"context_length", "tensor_data_layout"};

// One line, shortened: a file may hold any bytes.
std::string value_text(const GgufValue& value) {
  if (value.is_array()) return value.type_name() + " of " + std::to_string(value.size());
  if (const auto number = value.integer()) return std::to_string(*number);
  if (const auto number = value.number()) {
    char text[32];
    const auto single = static_cast<float>(*number);  // as most numbers of these files are
    char* const end = static_cast<double>(single) == *number
                          ? std::to_chars(text, text + sizeof text, single).ptr
                          : std::to_chars(text, text + sizeof text, *number).ptr;
    return {text, end};
  }
  if (const auto truth = value.boolean()) return *truth ? "true" : "false";
  if (const auto text = value.text()) return quote(*text);
  return value.type_name();
}

// The value of any numeric type as a number; NaN: it is not a number.
double number_of(const GgufValue& value) {
  if (value.is_array()) return NAN;
  if (const auto integer = value.integer()) return static_cast<double>(*integer);
  return value.number().value_or(NAN);
}

// GgufValue::is_blank(), extended to lists that have a value for each layer.
bool says_nothing(const GgufValue& value) {
  if (!value.is_array()) return value.is_blank();
  for (std::size_t i = 0; i < value.size(); ++i) {
    const auto integer = value.integer(i);
    const auto number = integer ? static_cast<double>(*integer) : value.number(i).value_or(NAN);
    if (number != 0.0) return false;
  }
  return true;
}

}  // namespace

ArchitectureKeys::ArchitectureKeys(const GgufFile& file, const std::string& architecture)
    : file_(file), prefix_(architecture + ".") {}

void ArchitectureKeys::fail(const std::string& key, const std::string& expected) const {
  const GgufValue* const value = file_.find_key(prefix_ + key);
  throw ModelError(file_.name() + ": key " + quote(prefix_ + key) + ": found " +
                   (value == nullptr ? "nothing" : value_text(*value)) + ", expected " + expected);
}

const GgufValue* ArchitectureKeys::find(const std::string& key) {
  known_.insert(key);
  return file_.find_key(prefix_ + key);
}

std::optional<std::int64_t> ArchitectureKeys::integer(const std::string& key, std::int64_t low,
                                                      std::int64_t high) {
  const GgufValue* const value = find(key);
  if (value == nullptr) return {};
  const auto number = value->is_array() ? std::nullopt : value->integer();
  if (!number || *number < low || *number > high) fail(key, whole_number_text(low, high));
  return number;
}

std::int64_t ArchitectureKeys::required(const std::string& key, std::int64_t low,
                                        std::int64_t high) {
  const auto number = integer(key, low, high);
  if (!number) fail(key, whole_number_text(low, high));
  return *number;
}

std::int64_t ArchitectureKeys::largest(const std::string& key, std::int64_t low,
                                       std::int64_t high) {
  const GgufValue* const value = find(key);
  std::int64_t most = 0;
  for (std::size_t i = 0; value != nullptr && i < value->size(); ++i) {
    const auto number = value->integer(i);
    if (!number || *number < 0 || *number > high) fail(key, whole_number_text(low, high));
    most = std::max(most, *number);
  }
  if (most < low) fail(key, whole_number_text(low, high));
  return most;
}

double ArchitectureKeys::positive(const std::string& key, double high,
                                  std::optional<double> if_absent) {
  const GgufValue* const value = find(key);
  if (value == nullptr && if_absent) return *if_absent;
  const auto number = value == nullptr || value->is_array() ? std::nullopt : value->number();
  if (!number || !(static_cast<float>(*number) > 0.0f) || !(*number <= high)) {
    fail(key, "a number above 0, at most " + std::to_string(high));
  }
  return *number;
}

std::size_t vocabulary_of(ArchitectureKeys& keys, const GgufFile& file) {
  const TensorInfo* const embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > kMaxVocabSize) {
    throw ModelError(
        file.name() +
        ": tensor \"token_embd.weight\": expected one of [vocabulary, width], at most " +
        std::to_string(kMaxVocabSize) + " rows");
  }
  return static_cast<std::size_t>(
      keys.integer("vocab_size", 1, kMaxVocabSize).value_or(embedding->shape[0]));
}

bool ArchitectureKeys::boolean(const std::string& key, bool if_absent) {
  const GgufValue* const value = find(key);
  if (value == nullptr) return if_absent;
  const auto truth = value->is_array() ? std::nullopt : value->boolean();
  if (!truth) fail(key, "true or false");
  return *truth;
}

void ArchitectureKeys::only(const std::string& key, bool value) {
  if (boolean(key, value) != value) fail(key, value ? "true" : "false");
}

void ArchitectureKeys::ignore_prefix(const std::string& prefix) {
  for (const auto& [name, value] : file_.keys()) {
    if (name.starts_with(prefix_ + prefix)) known_.insert(name.substr(prefix_.size()));
  }
}

// Without a type they are those of linear scaling.
void ArchitectureKeys::refuse_rope_scaling() {
  const std::string type = "rope.scaling.type";
  const std::string factor = "rope.scaling.factor";
  const GgufValue* const value = find(type);
  if (value != nullptr && !value->is_blank()) {
    if (value->is_array() || value->text() != "none") {
      fail(type, "\"none\": " + std::string(kGgufNotServed));
    }
    return ignore_prefix("rope.scaling.");
  }
  const GgufValue* const scaled = find(factor);
  if (scaled != nullptr && number_of(*scaled) != 1.0 && !scaled->is_blank()) {
    fail(factor, kGgufNotServed);
  }
  // Factors count where a type says so.
  ignore({"rope.scaling.finetuned", "rope.scaling.original_context_length"});
}

void ArchitectureKeys::finish(std::vector<UnknownKey>& unknown) {
  refuse_rope_scaling();
  only("attention.causal", true);
  for (const auto& [name, value] : file_.keys()) {
    if (!name.starts_with(prefix_) || says_nothing(value)) continue;
    const std::string key = name.substr(prefix_.size());
    if (known_.contains(key) || std::ranges::find(kIgnoredGguf, key) != std::end(kIgnoredGguf))
      continue;
    const auto refused = std::ranges::find(kRefusedGguf, key, &RefusedGgufKey::name);
    const bool is_refused = refused != std::end(kRefusedGguf) || key.starts_with("rope.scaling.");
    if (!is_refused) {
      unknown.push_back({.name = name, .found = value_text(value)});
    } else if (refused == std::end(kRefusedGguf) || number_of(value) != refused->neutral) {
      fail(key, kGgufNotServed);
    }
  }
}

std::vector<std::string_view> refused_gguf_keys() {
  std::vector<std::string_view> names = {"attention.causal", "rope.scaling."};
  for (const RefusedGgufKey& refused : kRefusedGguf) names.push_back(refused.name);
  return names;
}

}  // namespace lintel
