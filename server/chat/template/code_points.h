// SPDX-License-Identifier: Apache-2.0
// Properties of code points that Python's str uses: classes and case, of Unicode 14.
#pragma once

#include <cstddef>
#include <string_view>

namespace lintel::jinja {

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

}  // namespace lintel::jinja
