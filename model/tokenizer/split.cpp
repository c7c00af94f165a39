// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/split.h"

#include <array>

#include "model/tokenizer/unicode.h"

namespace lintel {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Class = CodePointClass;

// A place in a text with the character there.
struct Place {
  Place(std::string_view whole, std::size_t begin) : text(whole), at(begin) { look(); }

  bool at_end() const { return at == text.size(); }
  std::size_t end() const { return at + bytes; }
  bool is(char c) const { return !at_end() && code_point == static_cast<unsigned char>(c); }
  bool is_newline() const { return is('\r') || is('\n'); }
  void advance() {
    at += bytes;
    look();
  }
  void look() {
    bytes = 0;
    code_point = DecodedCharacter::kInvalid;
    kind = Class::kOther;
    if (at_end()) return;
    const DecodedCharacter character = decode_character(text.substr(at));
    bytes = character.bytes;
    code_point = character.code_point;
    if (code_point != DecodedCharacter::kInvalid) kind = class_of(code_point);
  }

  std::string_view text;
  std::size_t at;
  std::size_t bytes = 0;
  char32_t code_point = 0;
  Class kind = Class::kOther;
};

char32_t folded(char32_t code_point) {
  constexpr char32_t kLongS = 0x17F;  // folds to s
  if (code_point == kLongS) return 's';
  return code_point >= 'A' && code_point <= 'Z' ? code_point + ('a' - 'A') : code_point;
}

// The end of 's, 't, 're, 've, 'm, 'll or 'd; `place.at` if there is none.
std::size_t end_of_contraction(Place place, bool any_case) {
  const std::size_t begin = place.at;
  if (!place.is('\'')) return begin;
  const auto letter = [&] { return any_case ? folded(place.code_point) : place.code_point; };
  place.advance();
  if (place.at_end()) return begin;
  const char32_t first = letter();
  const std::size_t end = place.end();
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return end;
  place.advance();
  if (place.at_end()) return begin;
  const char32_t second = letter();
  const bool is_pair =
      ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return is_pair ? place.end() : begin;
}

template <typename Condition>
std::size_t end_of_run(Place place, Condition condition) {
  while (!place.at_end() && condition(place)) place.advance();
  return place.at;
}

// \s+(?!\S)|\s+, and before them \s*[\r\n]+ where lines end a piece.
std::size_t end_of_space(Place place, bool lines_end) {
  const std::size_t begin = place.at;
  std::size_t after_newline = begin;
  std::size_t last = begin;  // the beginning of the run's last character
  while (!place.at_end() && place.kind == Class::kSpace) {
    last = place.at;
    if (place.is_newline()) after_newline = place.end();
    place.advance();
  }
  if (lines_end && after_newline > begin) return after_newline;
  return place.at_end() || last == begin ? place.at : last;
}

std::size_t end_of_gpt2_piece(const Place& place) {
  const std::size_t contraction = end_of_contraction(place, false);
  if (contraction > place.at) return contraction;
  Place word = place;
  if (word.is(' ')) word.advance();
  if (word.at_end() || word.kind == Class::kSpace) return end_of_space(place, false);
  const auto is_other = [](Class kind) { return kind == Class::kOther || kind == Class::kMark; };
  const Class kind = word.kind;
  return end_of_run(
      word, [&](const Place& p) { return is_other(kind) ? is_other(p.kind) : p.kind == kind; });
}

std::size_t end_of_later_piece(const Place& place, bool marks_in_words, int most_digits) {
  const std::size_t contraction = end_of_contraction(place, true);
  if (contraction > place.at) return contraction;
  const auto in_word = [&](const Place& p) {
    return p.kind == Class::kLetter || (marks_in_words && p.kind == Class::kMark);
  };
  const auto is_other = [&](const Place& p) {
    return p.kind == Class::kOther || (!marks_in_words && p.kind == Class::kMark);
  };
  if (in_word(place)) return end_of_run(place, in_word);
  Place next = place;
  next.advance();
  const bool may_lead = place.kind != Class::kNumber && !place.is_newline();
  if (may_lead && !next.at_end() && in_word(next)) return end_of_run(next, in_word);
  if (place.kind == Class::kNumber) {
    int digits = 0;
    return end_of_run(
        place, [&](const Place& p) { return p.kind == Class::kNumber && digits++ < most_digits; });
  }
  const Place& others = place.is(' ') && !next.at_end() && is_other(next) ? next : place;
  if (!is_other(others)) return end_of_space(place, true);
  const std::size_t end = end_of_run(others, is_other);
  return end_of_run(Place(place.text, end), [](const Place& p) { return p.is_newline(); });
}

}  // namespace

std::string_view regex_of(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return kGpt2Regex;
    case SplitPattern::kQwen2:
      return kQwen2Regex;
    case SplitPattern::kQwen35:
      return kQwen35Regex;
    case SplitPattern::kLlama3:
      break;
  }
  return kLlama3Regex;
}

std::optional<SplitPattern> split_pattern_of(std::string_view regex) {
  for (const SplitPattern pattern :
       {SplitPattern::kQwen2, SplitPattern::kQwen35, SplitPattern::kLlama3}) {
    if (regex == regex_of(pattern)) return pattern;
  }
  return std::nullopt;
}

std::size_t end_of_piece(SplitPattern pattern, std::string_view text, std::size_t begin) {
  const Place place(text, begin);
  switch (pattern) {
    case SplitPattern::kGpt2:
      return end_of_gpt2_piece(place);
    case SplitPattern::kQwen2:
      return end_of_later_piece(place, false, 1);
    case SplitPattern::kQwen35:
      return end_of_later_piece(place, true, 1);
    case SplitPattern::kLlama3:
      break;
  }
  return end_of_later_piece(place, false, 3);
}

}  // namespace lintel
