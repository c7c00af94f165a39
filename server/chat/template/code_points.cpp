// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/code_points.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "model/tokenizer/unicode.h"

namespace lintel::jinja {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};
struct CaseRange {
  char32_t first;
  char32_t last;
  std::uint8_t step;
  std::int32_t difference;
};
struct CaseExpansion {
  char32_t code;
  char32_t codes[3];  // 0 after the last
};

#include "server/chat/template/python_text_tables.inc"

template <typename Range>
const Range* range_at(std::span<const Range> ranges, char32_t code) {
  const auto after = std::ranges::upper_bound(ranges, code, {}, &Range::first);
  if (after == ranges.begin()) return nullptr;
  const Range& range = *std::prev(after);
  return code <= range.last ? &range : nullptr;
}

template <std::size_t size>
bool contains(const CodeRange (&ranges)[size], char32_t code) {
  return range_at(std::span<const CodeRange>(ranges), code) != nullptr;
}

CaseMapping mapped(char32_t code, std::span<const CaseRange> ranges,
                   std::span<const CaseExpansion> expansions) {
  const auto wide = std::ranges::lower_bound(expansions, code, {}, &CaseExpansion::code);
  if (wide != expansions.end() && wide->code == code) {
    return {{wide->codes[0], wide->codes[1], wide->codes[2]}, wide->codes[2] == 0 ? 2 : 3};
  }
  const CaseRange* const range = range_at(ranges, code);
  if (range == nullptr || (code - range->first) % range->step != 0) return {{code, 0, 0}, 1};
  const auto other = static_cast<std::int32_t>(code) + range->difference;
  return {{static_cast<char32_t>(other), 0, 0}, 1};
}

constexpr bool is_ascii_lower(char32_t code) { return code >= U'a' && code <= U'z'; }
constexpr bool is_ascii_upper(char32_t code) { return code >= U'A' && code <= U'Z'; }

}  // namespace

bool is_space(char32_t code) {
  if (code < 0x80) return code == 0x20 || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  return !contains(kUnprintable, code);
}

bool is_alphabetic(char32_t code) {
  if (code < 0x80) return is_ascii_lower(code) || is_ascii_upper(code);
  return contains(kAlphabetic, code);
}

bool is_decimal_or_digit(char32_t code) { return contains(kDigits, code); }
bool is_numeric(char32_t code) { return contains(kNumeric, code); }
bool is_uppercase(char32_t code) { return contains(kUppercase, code); }
bool is_lowercase(char32_t code) { return contains(kLowercase, code); }

bool is_titlecase(char32_t code) {
  if (code < 0x80 || is_uppercase(code) || is_lowercase(code)) return false;
  const CaseMapping lower = lower_of(code);
  return lower.size == 1 && lower.codes[0] != code;
}

bool is_cased(char32_t code) { return contains(kCased, code); }
bool is_case_ignorable(char32_t code) { return contains(kCaseIgnorable, code); }

CaseMapping upper_of(char32_t code) {
  if (code < 0x80) return {{is_ascii_lower(code) ? code - 32 : code, 0, 0}, 1};
  return mapped(code, kUpperMappings, kUpperExpansions);
}

CaseMapping lower_of(char32_t code) {
  if (code < 0x80) return {{is_ascii_upper(code) ? code + 32 : code, 0, 0}, 1};
  return mapped(code, kLowerMappings, kLowerExpansions);
}

CaseMapping title_of(char32_t code) {
  if (code < 0x80) return upper_of(code);
  return mapped(code, kTitleMappings, kTitleExpansions);
}

std::size_t begin_of_last(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return decode_character(text.substr(begin, end - begin)).bytes == end - begin ? begin : end - 1;
}

std::size_t skip_spaces(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const DecodedCharacter character = decode_character(text.substr(begin));
    if (!is_space(character.code_point)) break;
    begin += character.bytes;
  }
  return begin;
}

std::size_t skip_spaces_back(std::string_view text, std::size_t end) {
  while (end > 0) {
    const std::size_t begin = begin_of_last(text, end);
    if (!is_space(decode_character(text.substr(begin, end - begin)).code_point)) break;
    end = begin;
  }
  return end;
}

}  // namespace lintel::jinja
