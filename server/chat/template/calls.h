// SPDX-License-Identifier: Apache-2.0
// Functions that expressions call: operators, attributes, filters, tests and methods, on values.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "server/chat/template/syntax.h"
#include "server/chat/template/values.h"

namespace lintel::jinja {

struct Keyword {
  const Text* name;
  Value value;
};
struct Arguments {
  const Value* values = nullptr;
  std::size_t size = 0;
  const Keyword* keywords = nullptr;
  std::size_t num_keywords = 0;
};

// Arguments by their places and names: missing() where none is given. Throws for one too many, and
// for a name that `names` does not have.
template <std::size_t size>
std::array<Value, size> bind(const char* callee, const Arguments& arguments,
                             const char* const (&names)[size], std::size_t required = 0);
void bind_arguments(const char* callee, const Arguments& arguments, const char* const* names,
                    std::size_t size, std::size_t required, Value* bound);
template <std::size_t size>
std::array<Value, size> bind(const char* callee, const Arguments& arguments,
                             const char* const (&names)[size], std::size_t required) {
  std::array<Value, size> bound;
  bind_arguments(callee, arguments, names, size, required, bound.data());
  return bound;
}
inline void bind_none(const char* callee, const Arguments& arguments) {
  bind_arguments(callee, arguments, nullptr, 0, 0, nullptr);
}

// An argument as a kind, or what it is by default. Throw for other kinds; `what` names it.
std::int64_t integer_argument(const Value& value, const char* what);
std::int64_t integer_argument(const Value& value, const char* what, std::int64_t by_default);
const Text& text_argument(const Value& value, const char* what);
bool flag_argument(const Value& value, bool by_default);

// operators.cpp
Value arithmetic(Arena& arena, Operator op, const Value& a, const Value& b);
bool compare_by(Arena& arena, Operator op, const Value& a, const Value& b);
Value negative_of(const Value& value);
Value positive_of(const Value& value);
// `a.name`: the method, else the key. `method`: method_of(name).
Value attribute_of(Arena& arena, const Value& value, const Text& name, int method);
// `a[key]`: the key, else the method.
Value item_of(Arena& arena, const Value& value, const Value& key);
// Omitted parts are missing() or none.
Value slice_of(Arena& arena, const Value& value, const Value& start, const Value& stop,
               const Value& step);
// Items by an attribute as filters name it, "a.b.0"; numbers are items.
Value attribute_path(Arena& arena, Value value, const Value& path);

// builtins.cpp; `id` as filter_of and test_of have it. `depth`: of map and the like.
Value apply_filter(Arena& arena, int id, const Value& value, const Arguments& arguments,
                   int depth = 0);
bool apply_test(Arena& arena, int id, const Value& value, const Arguments& arguments);

// methods.cpp. The method that a value has by this name; undefined: it has none.
Value bound_method(Arena& arena, const Value& value, int method, const Text& name);
// True if Python's type has such an attribute, which templates do not get: a key of the name is
// hidden by it, too.
bool hides_key(const Value& value, int method);
Value call_method(Arena& arena, const BoundMethod& method, const Arguments& arguments);

// format.cpp: `text % value` and text.format(...).
Value format_percent(Arena& arena, const Text& format, const Value& value);
Value format_braces(Arena& arena, const Text& format, const Arguments& arguments);

// strftime_now.
const Text* format_time(Arena& arena, const LocalTime& time, const Text& format);

}  // namespace lintel::jinja
