// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/tool_types.h"

#include <utility>

namespace lintel {
namespace {

constexpr int kMaxUnionDepth = 16;

TypeSet type_named(std::string_view name) {
  constexpr std::pair<std::string_view, TypeSet> kNames[] = {
      {"null", kNullType},     {"boolean", kBooleanType}, {"integer", kIntegerType},
      {"number", kNumberType}, {"object", kObjectType},   {"array", kArrayType},
      {"string", kTextType}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return 0;
}

template <typename Json>
TypeSet type_of(const Json& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_number_integer()) return kIntegerType;
  if (value.is_number()) return kNumberType;
  if (value.is_object()) return kObjectType;
  if (value.is_array()) return kArrayType;
  return kTextType;
}

template <typename Json>
TypeSet types_of(const Json& schema, int depth) {
  TypeSet types = 0;
  if (!schema.is_object() || depth > kMaxUnionDepth) return types;
  for (const auto& [key, value] : schema.items()) {
    if (key == "type") {
      if (value.is_string()) types |= type_named(value.template get_ref<const std::string&>());
      if (!value.is_array()) continue;
      for (const Json& one : value) {
        if (one.is_string()) types |= type_named(one.template get_ref<const std::string&>());
      }
    } else if (key == "enum" && value.is_array()) {
      for (const Json& one : value) types |= type_of(one);
    } else if (key == "const") {
      types |= type_of(value);
    } else if ((key == "anyOf" || key == "oneOf") && value.is_array()) {
      for (const Json& one : value) types |= types_of(one, depth + 1);
    } else if (key == "nullable" && value.is_boolean() && value.template get<bool>()) {
      types |= kNullType;
    }
  }
  return types;
}

template <typename Json>
std::map<std::string, ToolTypes::Parameters, std::less<>> functions_of(const Json& tools) {
  std::map<std::string, ToolTypes::Parameters, std::less<>> functions;
  if (!tools.is_array()) return functions;
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const auto nested = tool.find("function");
    const Json& function = nested != tool.end() && nested->is_object() ? *nested : tool;
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) continue;
    auto& parameters = functions[name->template get_ref<const std::string&>()];
    const auto schema = function.find("parameters");
    if (schema == function.end() || !schema->is_object()) continue;
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) parameters[key] = types_of(property, 0);
  }
  return functions;
}

}  // namespace

ToolTypes::ToolTypes(const nlohmann::json& tools) : functions_(functions_of(tools)) {}
ToolTypes::ToolTypes(const nlohmann::ordered_json& tools) : functions_(functions_of(tools)) {}

const ToolTypes::Parameters* ToolTypes::find(std::string_view function) const {
  const auto found = functions_.find(function);
  return found == functions_.end() ? nullptr : &found->second;
}

}  // namespace lintel
