// SPDX-License-Identifier: Apache-2.0
// Values as text, as Python writes them: str, repr and json.dumps.
#pragma once

#include <cstdint>
#include <string>

#include "server/chat/template/values.h"

namespace lintel::jinja {

// str(): what `~`, `string` and {{ }} print. A text's bytes keep their origins, also as parts of
// lists and mappings.
const Text* str_of(Arena& arena, const Value& value);
void add_str(TextBuilder& builder, Arena& arena, const Value& value);
const Text* repr_of(Arena& arena, const Value& value);
// Python's ascii(): code points beyond ASCII as escapes.
const Text* ascii_of(Arena& arena, const Value& value);

// The shortest decimal that is read as this number: "1.0", "1e+16", "nan".
std::string repr_of(double number);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  const Text* indent = nullptr;   // of a level; null: all in one line
  const Text* between = nullptr;  // items: ", "
  const Text* after_key = nullptr;
};
// json.dumps. Throws for kinds that JSON does not have.
const Text* json_of(Arena& arena, const Value& value, const JsonStyle& style);

}  // namespace lintel::jinja
