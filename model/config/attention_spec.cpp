// SPDX-License-Identifier: Apache-2.0
#include "model/config/attention_spec.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/core/errors.h"

namespace lintel {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

std::vector<const char*> choices_of(const ConfigKey& key) {
  std::vector<const char*> names;
  for (const char* const name : key.choices) {
    if (name != nullptr) names.push_back(name);
  }
  return names;
}

KeyValue read_value(Fields& fields, const ConfigKey& key) {
  const std::string name = key.name;
  const bool may_be_null = key.null_means != nullptr;
  if (may_be_null && fields.has(name) && fields.value(name, "").is_null()) return std::monostate();
  const char* const or_null = may_be_null ? ", or null" : "";
  const auto low = static_cast<std::int64_t>(key.low);
  const auto high = static_cast<std::int64_t>(key.high);
  switch (key.type) {
    case ConfigKey::Type::kInteger:
      return fields.integer(name, low, high, or_null);
    case ConfigKey::Type::kIntegers:
      if (fields.has(name) && fields.value(name, "").is_array()) {
        return fields.integers(name, low, high);
      }
      return fields.integer(name, low, high, ", or a list of n_heads of them");
    case ConfigKey::Type::kPositive:
      return fields.positive(name, key.high, or_null);
    case ConfigKey::Type::kNotNegative:
      return fields.not_negative(name, key.high, or_null);
    case ConfigKey::Type::kBoolean:
      return fields.boolean(name);
    case ConfigKey::Type::kChoice: {
      const std::vector<const char*> names = choices_of(key);
      return std::string(names[fields.choice(name, names)]);
    }
  }
  return std::monostate();
}

// A default goes the way of what is given: one declared out of its own range is refused, too.
KeyValue default_value(const ConfigKey& key) {
  const json object = {{key.name, json::parse(key.initial)}};
  Fields fields(object, "default", "");
  return read_value(fields, key);
}

ordered_json json_of(const KeyValue& value) {
  return std::visit(
      [](const auto& v) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return nullptr;
        } else {
          return v;
        }
      },
      value);
}

}  // namespace

AttentionConfig read_attention(const json& value, const std::string& file,
                               const std::string& path) {
  Fields fields(value, file, path);
  std::vector<const char*> types;
  for (const AttentionKind* kind : attention_kinds()) types.push_back(kind->type);
  const AttentionKind& kind = *attention_kinds()[fields.choice("type", types)];
  std::vector<KeyValue> values;
  for (const ConfigKey& key : kind.keys) {
    const bool is_left_out = key.initial != nullptr && !fields.has(key.name);
    values.push_back(is_left_out ? default_value(key) : read_value(fields, key));
  }
  fields.finish(" for attention type \"" + std::string(kind.type) + "\"");
  return {kind, std::move(values)};
}

ordered_json attention_json(const AttentionConfig& attention) {
  ordered_json out = {{"type", attention.type()}};
  std::size_t i = 0;
  for (const ConfigKey& key : attention.kind().keys) {
    out[key.name] = json_of(attention.values()[i++]);
  }
  return out;
}

AttentionConfig parse_attention_config(std::string_view json_text, const std::string& name) {
  return read_attention(parse_strictly(json_text, name), name, "");
}

std::string to_json(const AttentionConfig& attention) { return attention_json(attention).dump(); }

namespace {

using nlohmann::json;

std::string named(const AttentionSpec& spec) { return "attention " + quote(spec.text); }

// config.json's reader judges keys and values, so that there is one list of them. object: the keys
// that were not given.
AttentionConfig merged(json object, const AttentionSpec& spec) {
  object["type"] = spec.type;
  for (const auto& [key, value] : spec.keys) object[key] = json::parse(value);
  return read_attention(object, named(spec), "");
}

bool has_default(const AttentionConfig& config, const std::string& key) {
  return std::ranges::any_of(config.kind().keys, [&key](const ConfigKey& declared) {
    return declared.name == key && declared.initial != nullptr;
  });
}

// A value as JSON: numbers, true, false and null are themselves, the rest is a string.
std::string json_of(const std::string& value) {
  const json parsed = json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded() && !parsed.is_structured() && !parsed.is_string()) return value;
  return json(value).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

class Reader {
 public:
  explicit Reader(const std::string& text) { spec_.text = text; }

  AttentionSpec read() {
    const std::string& text = spec_.text;
    std::size_t end = std::min(text.find(':'), text.size());
    spec_.type = text.substr(0, end);
    const AttentionKind& kind = attention_kind(spec_.type);  // refuses unknown types
    while (end < text.size()) {
      const std::size_t begin = end + 1;
      end = std::min(text.find(',', begin), text.size());
      read_key(text.substr(begin, end - begin));
    }
    if (spec_.seed.has_value() && kind.tensors == nullptr) {
      fail("seed", "a type that draws nothing", "no seed for " + quote(spec_.type));
    }
    return std::move(spec_);
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& found,
                         const std::string& expected) const {
    throw ModelError("attention " + quote(spec_.text) + ": key " + quote(key) + ": found " + found +
                     ", expected " + expected);
  }

  void read_key(const std::string& assignment) {
    const std::size_t equals = assignment.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw ModelError("attention " + quote(spec_.text) + ": found " + quote(assignment) +
                       ", expected key=value");
    }
    const std::string key = assignment.substr(0, equals);
    const std::string value = assignment.substr(equals + 1);
    if (key == "type") fail(key, quote(value), "the type before the colon");
    if (!names_.emplace(key, value).second) fail(key, "it twice", "it once");
    if (key == "recompute") {
      if (value != "true" && value != "false") fail(key, quote(value), "true or false");
      spec_.recompute = value == "true";
    } else if (key == "seed") {
      std::uint64_t seed = 0;
      const char* const last = value.data() + value.size();
      const auto [rest, error] = std::from_chars(value.data(), last, seed);
      if (error != std::errc() || rest != last) {
        fail(key, quote(value), "a whole number from 0 to 2^64 - 1");
      }
      spec_.seed = seed;
    } else {
      spec_.keys.emplace(key, json_of(value));
    }
  }

  AttentionSpec spec_;
  std::map<std::string, std::string> names_;
};

}  // namespace

AttentionConfig AttentionSpec::applied_to(const AttentionConfig& own, const LayerDims& dims) const {
  json kept = own.type() == type ? json(attention_json(own)) : json::object();
  for (;;) {
    AttentionConfig config = merged(kept, *this);
    const auto contradiction = config.kind().contradiction;
    if (contradiction == nullptr) return config;
    const auto wrong = contradiction(config, dims);
    // Keys of the spec stay; a key of the layer's own is dropped.
    const bool gives_way = wrong && !keys.contains(wrong->key) && has_default(config, wrong->key) &&
                           kept.erase(wrong->key) > 0;
    if (!gives_way) return config;  // check_attention refuses what still contradicts
  }
}

AttentionSpec parse_attention_spec(const std::string& text) {
  AttentionSpec spec = Reader(text).read();
  // Checks the keys; sample values stand in for required ones.
  merged(json(attention_json(sample_attention(spec.type))), spec);
  return spec;
}

ModelConfig with_attention(ModelConfig config, const AttentionSpec& spec) {
  for (AttentionConfig& layer : config.attention) {
    layer = spec.applied_to(layer, config.dims());
    check_attention(layer, config.dims(), named(spec), "");
  }
  return config;
}

AttentionConfig attention_of(const std::string& spec) {
  return merged(json::object(), Reader(spec).read());
}

std::vector<std::string> sample_specs(std::string_view type) {
  const AttentionKind& kind = attention_kind(type);
  std::vector<std::string> specs;
  for (const std::string keys : kind.samples) {
    specs.push_back(std::string(type) + (keys.empty() ? "" : ":" + keys));
  }
  return specs;
}

AttentionConfig sample_attention(std::string_view type) {
  return attention_of(sample_specs(type).front());
}

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
      keys += std::string(keys.empty() ? "" : ", ") + key.name;
    }
    help += (help.empty() ? "" : "; ") + std::string(kind->type) +
            (keys.empty() ? "" : " (" + keys + ")");
  }
  return help;
}

}  // namespace lintel
