// SPDX-License-Identifier: Apache-2.0
// ToolTypes: of which types the parameters of functions are.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lintel {

// A set of JSON's types, a bit each.
using TypeSet = std::uint8_t;
inline constexpr TypeSet kNullType = 1, kBooleanType = 2, kIntegerType = 4, kNumberType = 8,
                         kObjectType = 16, kArrayType = 32, kTextType = 64,
                         kAnyType = 128;  // some schema of it names no type

// Types of the parameters of each function, from `properties`, `type`, `enum`, `const`, `anyOf`,
// `oneOf`, `allOf`, local `$ref` and `nullable` of its JSON Schema; anything else is not looked at.
// The type "float" is a number. Constant after construction, so that several readers share it.
class ToolTypes {
 public:
  using Parameters = std::map<std::string, TypeSet, std::less<>>;

  ToolTypes() = default;
  // `tools`: the list of a request, each {"type": "function", "function": {"name", "parameters"}}
  // or {"type": "function", "name", "parameters"}. What is of another shape has no types.
  explicit ToolTypes(const nlohmann::json& tools);
  explicit ToolTypes(const nlohmann::ordered_json& tools);

  // The parameters of a function; null: there is no such function.
  const Parameters* find(std::string_view function) const;

 private:
  std::map<std::string, Parameters, std::less<>> functions_;
};

}  // namespace lintel
