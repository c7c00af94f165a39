// SPDX-License-Identifier: Apache-2.0
// ToolTypes: of which types the parameters of functions are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lintel {

// A set of JSON's types, a bit each.
using TypeSet = std::uint8_t;
inline constexpr TypeSet kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8,
                         kObjectType = 16, kArrayType = 32, kTextType = 64,
                         kAnyType = 128;  // some schema of it names no type

class FunctionSchema;

// Types of the parameters of each function, from `properties`, `patternProperties`,
// `additionalProperties`, `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `nullable` and `$ref`
// within its JSON Schema, by pointer, `$anchor` or `$id`; anything else is not looked at. The type
// "float" is a number. Constant after construction, so that several readers share it.
class ToolTypes {
 public:
  using Parameters = std::map<std::string, TypeSet, std::less<>>;

  ToolTypes() = default;
  // `tools`: the list of a request, each {"type": "function", "function": {"name", "parameters"}}
  // or {"type": "function", "name", "parameters"}. Tools of another shape have no types.
  explicit ToolTypes(const nlohmann::json& tools);
  explicit ToolTypes(const nlohmann::ordered_json& tools);

  // The parameters of a function that `properties` name; null: there is no such function.
  const Parameters* find(std::string_view function) const;
  // The types of a parameter, also of one that `properties` does not name; 0: unknown.
  TypeSet types(std::string_view function, const std::string& parameter) const;
  // True if the schema of a parameter takes a value, as far as its types, `enum`, `const`, bounds
  // of numbers, `required`, and the same of members and items say.
  bool takes(std::string_view function, const std::string& parameter,
             const nlohmann::json& value) const;

 private:
  struct Function {
    Parameters parameters;
    std::shared_ptr<const FunctionSchema> schema;  // null: `parameters` says all
  };

  template <typename Tools>
  void read(const Tools& tools);

  std::map<std::string, Function, std::less<>> functions_;
};

}  // namespace lintel
