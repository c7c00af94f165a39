// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/tool_types.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

namespace lintel {
namespace {

TypeSet type_named(std::string_view name) {
  constexpr TypeSet kAnyNumber = kIntegerType | kNumberType;
  constexpr std::pair<std::string_view, TypeSet> kNames[] = {
      {"null", kNullType},    {"boolean", kBooleanType}, {"integer", kIntegerType},
      {"number", kAnyNumber}, {"float", kAnyNumber},     {"object", kObjectType},
      {"array", kArrayType},  {"string", kTextType}};
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return 0;
}

// A text with %HH as bytes; nothing: it has a % without two digits.
std::optional<std::string> percent_decoded(std::string_view text) {
  const auto digit = [&](std::size_t at) {
    const char c = at < text.size() ? text[at] : '?';
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = digit(i + 1), low = digit(i + 2);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
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

// Returns the types that both permit.
TypeSet both(TypeSet one, TypeSet other) {
  if ((one & kAnyType) != 0) return other;
  if ((other & kAnyType) != 0) return one;
  return one & other;
}

// Reads the schemas of one function. References are followed within the bounds; where they end a
// schema has no type. Time is linear in the schema, for each is read once.
template <typename Json>
class SchemaTypes {
 public:
  explicit SchemaTypes(const Json& root) : root_(root) {}

  ToolTypes::Parameters parameters() {
    ToolTypes::Parameters found;
    add_properties(root_, 0, found);
    return found;
  }

 private:
  static constexpr int kMaxDepth = 200;  // of references and combined schemas within one another
  static constexpr std::size_t kMaxVisits = 100'000;

  // The schema that a local reference names; null: there is none.
  const Json* resolve(const Json& reference) const {
    if (!reference.is_string()) return nullptr;
    const auto& text = reference.template get_ref<const std::string&>();
    if (!text.starts_with('#')) return nullptr;
    const std::optional<std::string> pointer = percent_decoded(std::string_view(text).substr(1));
    if (!pointer) return nullptr;
    try {
      const typename Json::json_pointer at(*pointer);
      return root_.contains(at) ? &root_.at(at) : nullptr;
    } catch (const typename Json::exception&) {  // no pointer
      return nullptr;
    }
  }

  // Schemas that hold together with `schema`: the target of a reference, and those of allOf.
  template <typename Visit>
  void for_each_conjunct(const Json& schema, const Visit& visit) {
    if (const auto reference = schema.find("$ref"); reference != schema.end()) {
      if (const Json* const target = resolve(*reference)) visit(*target);
    }
    const auto all = schema.find("allOf");
    if (all == schema.end() || !all->is_array()) return;
    for (const Json& one : *all) visit(one);
  }

  TypeSet types_of(const Json& schema, int depth) {
    if (!schema.is_object() || depth > kMaxDepth) return kAnyType;
    const auto [known, is_new] = types_.emplace(&schema, kAnyType);  // within itself: any
    if (!is_new) return known->second;
    TypeSet types = own_types(schema);
    for_each_conjunct(schema,
                      [&](const Json& one) { types = both(types, types_of(one, depth + 1)); });
    for (const char* const key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end() || !branches->is_array() || branches->empty()) continue;
      TypeSet either = 0;
      for (const Json& one : *branches) either |= types_of(one, depth + 1);
      types = both(types, either);
    }
    const auto nullable = schema.find("nullable");
    if (nullable != schema.end() && *nullable == true && types != kAnyType) types |= kNullType;
    types_[&schema] = types;
    return types;
  }

  static TypeSet own_types(const Json& schema) {
    TypeSet types = kAnyType;
    if (const auto type = schema.find("type"); type != schema.end()) {
      types = 0;
      const auto add = [&](const Json& one) {
        if (one.is_string()) types |= type_named(one.template get_ref<const std::string&>());
      };
      if (!type->is_array()) add(*type);
      if (type->is_array()) std::ranges::for_each(*type, add);
    }
    TypeSet constants = kAnyType;
    if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
      constants = 0;
      for (const Json& one : *list) constants |= type_of(one);
    }
    if (const auto one = schema.find("const"); one != schema.end()) constants = type_of(*one);
    const TypeSet found = both(types, constants);
    // An integer may be spelt as 2.0 where a constant is.
    const bool is_integer = (types & (kAnyType | kIntegerType)) == kIntegerType;
    return is_integer && (constants & kNumberType) != 0 ? found | kNumberType : found;
  }

  // Adds the properties of the whole; those that come twice are of both types.
  void add_properties(const Json& schema, int depth, ToolTypes::Parameters& found) {
    if (!schema.is_object() || depth > kMaxDepth || ++visits_ > kMaxVisits) return;
    const auto add = [&found](const std::string& key, TypeSet types) {
      const auto [known, is_new] = found.emplace(key, types);
      if (!is_new) known->second = both(known->second, types);
    };
    const auto properties = schema.find("properties");
    if (properties != schema.end() && properties->is_object()) {
      for (const auto& [key, property] : properties->items()) add(key, types_of(property, 0));
    }
    for_each_conjunct(schema, [&](const Json& one) { add_properties(one, depth + 1, found); });
    for (const char* const key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end() || !branches->is_array()) continue;
      ToolTypes::Parameters either;
      for (const Json& one : *branches) {
        ToolTypes::Parameters of_branch;
        add_properties(one, depth + 1, of_branch);
        for (const auto& [name, types] : of_branch) either[name] |= types;
      }
      for (const auto& [name, types] : either) add(name, types);
    }
  }

  const Json& root_;
  std::unordered_map<const Json*, TypeSet> types_;
  std::size_t visits_ = 0;
};

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
    if (schema != function.end()) parameters = SchemaTypes<Json>(*schema).parameters();
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
