// SPDX-License-Identifier: Apache-2.0
// JSON text as a tree that keeps the order of members and the spelling of numbers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lintel::grammar {

inline constexpr std::size_t kMaxSchemaBytes = std::size_t{256} << 10;

using Integer = __int128;

struct JsonValue {
  enum class Type { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Type type = Type::kNull;
  bool boolean = false;
  std::string text;                // of a string; of a number as it was spelt
  std::optional<Integer> integer;  // a number without fraction, of at most 38 digits
  std::vector<std::string> names;  // of members
  std::vector<JsonValue> values;   // of members or items

  bool is(Type t) const { return type == t; }
  // The last member of that name; null: there is none, or this is no object.
  const JsonValue* find(std::string_view name) const;
};

// Throws GrammarError for what is not JSON, is nested more than 128 deep, or has more than
// kMaxSchemaBytes.
JsonValue parse_json(std::string_view text);

// Compares values: 1.0 is 1, and members come in any order.
bool same_value(const JsonValue& one, const JsonValue& other);

}  // namespace lintel::grammar
