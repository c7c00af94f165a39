#include "model/config/kind_pages.h"

#include <nlohmann/json.hpp>

#include "model/config/attention_json.h"
#include "model/config/attention_spec.h"

namespace lintel {
namespace {

using nlohmann::ordered_json;

const char* name_of(ConfigKey::Type type) {
  switch (type) {
    case ConfigKey::Type::kInteger:
      return "integer";
    case ConfigKey::Type::kIntegers:
      return "integers";
    case ConfigKey::Type::kPositive:
      return "positive";
    case ConfigKey::Type::kNotNegative:
      return "not_negative";
    case ConfigKey::Type::kBoolean:
      return "boolean";
    case ConfigKey::Type::kChoice:
      return "choice";
  }
  return "";
}

std::vector<std::string> choice_names(const ConfigKey& key) {
  std::vector<std::string> names;
  for (const char* const name : key.choices) {
    if (name != nullptr) names.emplace_back(name);
  }
  return names;
}

ordered_json key_json(const ConfigKey& key) {
  ordered_json out = {
      {"name", key.name}, {"type", name_of(key.type)}, {"doc", key.doc}, {"range", range_of(key)}};
  const bool is_whole =
      key.type == ConfigKey::Type::kInteger || key.type == ConfigKey::Type::kIntegers;
  if (is_whole) out["low"] = static_cast<std::int64_t>(key.low);
  if (is_whole) out["high"] = static_cast<std::int64_t>(key.high);
  if (!is_whole && key.high > 0) out["high"] = key.high;
  if (key.type == ConfigKey::Type::kChoice) out["choices"] = choice_names(key);
  if (key.null_means != nullptr) out["null_means"] = key.null_means;
  if (key.initial != nullptr) out["initial"] = ordered_json::parse(key.initial);
  return out;
}

ordered_json sample_json(const std::string& spec) {
  const AttentionConfig config = attention_of(spec);
  ordered_json out = {{"attention", attention_json(config)},
                      {"out_width", out_width(config, kSampleDims)},
                      {"projections", ordered_json::array()},
                      {"tensors", ordered_json::array()}};
  for (const Projection& p : config.kind().projections(config, kSampleDims)) {
    out["projections"].push_back(
        {{"name", p.name}, {"width", p.width}, {"has_bias", p.has_bias}, {"is_read", p.is_read}});
  }
  for (const OwnTensor& tensor : own_tensors(config, kSampleDims)) {
    out["tensors"].push_back({{"name", tensor.name},
                              {"shape", tensor.shape},
                              {"shape_doc", tensor.shape_doc},
                              {"is_learned", tensor.is_learned}});
  }
  return out;
}

// 1 and 1000000, not 1.0 and 1e+06.
std::string number_text(double number) {
  const auto whole = static_cast<std::int64_t>(number);
  return static_cast<double>(whole) == number ? std::to_string(whole) : ordered_json(number).dump();
}

}  // namespace

std::string kinds_json() {
  ordered_json kinds = ordered_json::array();
  for (const AttentionKind* kind : attention_kinds()) {
    ordered_json out = {{"type", kind->type},
                        {"doc", kind->doc},
                        {"state", kind->state},
                        {"cost", kind->cost},
                        {"keys", ordered_json::array()},
                        {"samples", ordered_json::array()}};
    for (const ConfigKey& key : kind->keys) out["keys"].push_back(key_json(key));
    for (const std::string& spec : sample_specs(kind->type)) {
      out["samples"].push_back(sample_json(spec));
    }
    kinds.push_back(std::move(out));
  }
  const ordered_json dims = {{"d_model", kSampleDims.d_model},
                             {"n_heads", kSampleDims.n_heads},
                             {"d_head", kSampleDims.d_head},
                             {"max_length", kSampleDims.max_length}};
  return ordered_json{{"sample_dims", dims}, {"kinds", std::move(kinds)}}.dump(2) + "\n";
}

std::string range_of(const ConfigKey& key) {
  switch (key.type) {
    case ConfigKey::Type::kInteger:
      return "a whole number from " + number_text(key.low) + " to " + number_text(key.high);
    case ConfigKey::Type::kIntegers:
      return "a whole number from " + number_text(key.low) + " to " + number_text(key.high) +
             ", or a list of them, one a head";
    case ConfigKey::Type::kNotNegative:
      return "from 0 to " + number_text(key.high);
    case ConfigKey::Type::kPositive:
      return "above 0, at most " + number_text(key.high);
    case ConfigKey::Type::kBoolean:
      return "true or false";
    case ConfigKey::Type::kChoice: {
      std::string all;
      for (const std::string& name : choice_names(key)) all += (all.empty() ? "" : " or ") + name;
      return all;
    }
  }
  return "";
}

std::string default_of(const ConfigKey& key) {
  if (key.initial == nullptr) return "";
  const auto value = ordered_json::parse(key.initial);
  if (value.is_null()) return key.null_means;
  return value.is_string() ? value.get<std::string>() : key.initial;
}

std::string kinds_help() {
  std::string help;
  for (const AttentionKind* kind : attention_kinds()) {
    std::string keys;
    for (const ConfigKey& key : kind->keys) {
      const std::string left_out = default_of(key);
      keys += std::string(keys.empty() ? "" : "; ") + key.name + ": " + key.doc + ", " +
              range_of(key) + (left_out.empty() ? "" : " [" + left_out + "]");
    }
    help += (help.empty() ? "" : "; ") + std::string(kind->type) +
            (keys.empty() ? "" : " (" + keys + ")");
  }
  return help;
}

}  // namespace lintel
