#include "model/config/attention_json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "model/config/json_fields.h"

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

}  // namespace lintel
