// SPDX-License-Identifier: Apache-2.0
// Python's text: characters, operations of str, and values as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/template/values.h"

namespace lintel::jinja {

// Characters: classes and case of code points, of Unicode 14.

// str.isspace, which is also what \s of Python's patterns matches.
bool is_space(char32_t code);
bool is_printable(char32_t code);
bool is_alphabetic(char32_t code);
bool is_decimal_or_digit(char32_t code);  // str.isdigit
bool is_numeric(char32_t code);
bool is_uppercase(char32_t code);
bool is_lowercase(char32_t code);
bool is_titlecase(char32_t code);
bool is_cased(char32_t code);
bool is_case_ignorable(char32_t code);
// str.isalnum; with "_" it is \w of Python's patterns.
inline bool is_alphanumeric(char32_t code) { return is_alphabetic(code) || is_numeric(code); }

// A code point in another case: one to three code points.
struct CaseMapping {
  char32_t codes[3];
  int size;
};
CaseMapping upper_of(char32_t code);
CaseMapping lower_of(char32_t code);  // without the final form of sigma
CaseMapping title_of(char32_t code);

// The character that ends at `end`: where it begins. REQUIRES: 0 < end <= text.size().
std::size_t begin_of_last(std::string_view text, std::size_t end);

// The end of the white space at `begin`, and the beginning of that before `end`.
std::size_t skip_spaces(std::string_view text, std::size_t begin);
std::size_t skip_spaces_back(std::string_view text, std::size_t end);

// Operations of str. All keep origins, and charge the arena for what they look through.

// The byte of the first or last occurrence at or after `from`; npos: there is none.
std::size_t find_bytes(Arena& arena, std::string_view text, std::string_view wanted,
                       std::size_t from = 0);
std::size_t find_last_bytes(Arena& arena, std::string_view text, std::string_view wanted);

enum class Side : std::uint8_t { kBoth, kLeft, kRight };
// `characters`: to be cut off; null: white space.
const Text* strip(Arena& arena, const Text& text, const Text* characters, Side side);
// `count` negative: all.
const Text* replace(Arena& arena, const Text& text, const Text& from, const Text& to,
                    std::int64_t count);
// `separator` null: runs of white space. `most`: splits; negative: all.
std::vector<Value> split(Arena& arena, const Text& text, const Text* separator, std::int64_t most);
std::vector<Value> split_right(Arena& arena, const Text& text, const Text* separator,
                               std::int64_t most);
std::vector<Value> split_lines(Arena& arena, const Text& text, bool keeps_ends);
// Joins texts; other kinds throw unless `converts`.
const Text* join(Arena& arena, const Text& separator, const List& items, bool converts);
const Text* escape_html(Arena& arena, const Text& text);

const Text* to_upper(Arena& arena, const Text& text);
const Text* to_lower(Arena& arena, const Text& text);
const Text* capitalize(Arena& arena, const Text& text);
const Text* to_title(Arena& arena, const Text& text);        // the method
const Text* title_of_words(Arena& arena, const Text& text);  // the filter
// islower, isupper.
bool is_lower_text(Arena& arena, const Text& text);
bool is_upper_text(Arena& arena, const Text& text);
// True if there are characters, and `fits` is true of each.
bool is_all(Arena& arena, const Text& text, bool (*fits)(char32_t));
std::size_t count_words(Arena& arena, const Text& text);

// Operands of `+` and the like: markup escapes what is none.
const Text* concatenate(Arena& arena, const Text& a, const Text& b);
const Text* repeat(Arena& arena, const Text& text, std::int64_t times);

// Values as Python writes them: str, repr and json.dumps.

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
