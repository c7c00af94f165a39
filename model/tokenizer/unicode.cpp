// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace lintel {
namespace {

struct CodePointRange {
  char32_t first;
  char32_t last;
  std::uint8_t value;
};
struct Decomposition {
  char32_t code_point;
  char32_t first;
  char32_t second;  // 0: there is none
};
struct Composition {
  char32_t first;
  char32_t second;
  char32_t code_point;
};

#include "model/tokenizer/unicode_tables.inc"

// 0: in none of the ranges.
std::uint8_t value_in(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::ranges::upper_bound(ranges, code_point, {}, &CodePointRange::first);
  if (after == ranges.begin()) return 0;
  const CodePointRange& range = *std::prev(after);
  return code_point <= range.last ? range.value : 0;
}

constexpr char32_t kFirstUnstable = 0x300;

constexpr std::array<std::uint8_t, 128> kAsciiClasses = [] {
  std::array<std::uint8_t, 128> classes{};
  for (const CodePointRange& range : kClassRanges) {
    for (char32_t c = range.first; c <= range.last && c < 128; ++c) classes[c] = range.value;
  }
  return classes;
}();

// Hangul syllables are computed (The Unicode Standard, 3.12).
constexpr char32_t kSyllables = 0xAC00;
constexpr char32_t kLeads = 0x1100;
constexpr char32_t kVowels = 0x1161;
constexpr char32_t kTails = 0x11A7;
constexpr char32_t kNumLeads = 19;
constexpr char32_t kNumVowels = 21;
constexpr char32_t kNumTails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTails;

// A code point, or a byte that belongs to none.
struct Unit {
  char32_t code_point;
  std::uint8_t combining;
  bool is_byte = false;
};

void decompose(char32_t code_point, std::vector<Unit>& units) {
  if (code_point - kSyllables < kNumSyllables) {
    const char32_t index = code_point - kSyllables;
    units.push_back({kLeads + index / (kNumVowels * kNumTails), 0});
    units.push_back({kVowels + index / kNumTails % kNumVowels, 0});
    if (index % kNumTails != 0) units.push_back({kTails + index % kNumTails, 0});
    return;
  }
  const auto found =
      std::ranges::lower_bound(kDecompositions, code_point, {}, &Decomposition::code_point);
  if (found == std::end(kDecompositions) || found->code_point != code_point) {
    units.push_back({code_point, value_in(kCombiningRanges, code_point)});
    return;
  }
  decompose(found->first, units);  // at most four deep
  if (found->second != 0) decompose(found->second, units);
}

// 0: they are not joined.
char32_t compose(char32_t first, char32_t second) {
  if (first - kLeads < kNumLeads && second - kVowels < kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + second - kVowels) * kNumTails;
  }
  if (first - kSyllables < kNumSyllables && (first - kSyllables) % kNumTails == 0 &&
      second > kTails && second - kTails < kNumTails) {
    return first + second - kTails;
  }
  const auto key = std::pair(first, second);
  const auto pair_of = [](const Composition& c) { return std::pair(c.first, c.second); };
  const auto found = std::ranges::lower_bound(kCompositions, key, {}, pair_of);
  return found != std::end(kCompositions) && pair_of(*found) == key ? found->code_point : 0;
}

void order_marks(std::vector<Unit>& units) {
  for (auto at = units.begin(); at != units.end();) {
    at = std::find_if(at, units.end(), [](const Unit& unit) { return unit.combining != 0; });
    const auto end =
        std::find_if(at, units.end(), [](const Unit& unit) { return unit.combining == 0; });
    std::stable_sort(at, end,
                     [](const Unit& a, const Unit& b) { return a.combining < b.combining; });
    at = end;
  }
}

void join(std::vector<Unit>& units) {
  std::size_t kept = 0;
  std::size_t starter = units.size();  // none
  std::uint8_t last = 0;               // class of the last unit kept after the starter
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit unit = units[i];
    const bool is_next = starter < kept && kept - starter == 1;
    if (starter < kept && !unit.is_byte && (is_next || last < unit.combining)) {
      const char32_t joined = compose(units[starter].code_point, unit.code_point);
      if (joined != 0) {
        units[starter].code_point = joined;
        continue;
      }
    }
    if (unit.combining == 0) starter = unit.is_byte ? units.size() : kept;
    last = unit.combining;
    units[kept++] = unit;
  }
  units.resize(kept);
}

// Appends NFC of a text that nothing before and after it is joined to.
void append_nfc(std::string_view text, std::vector<Unit>& units, std::string& normalized) {
  units.clear();
  while (!text.empty()) {
    const DecodedCharacter character = decode_character(text);
    if (character.code_point == DecodedCharacter::kInvalid) {
      units.push_back({static_cast<unsigned char>(text.front()), 0, true});
    } else {
      decompose(character.code_point, units);
    }
    text.remove_prefix(character.bytes);
  }
  order_marks(units);
  join(units);
  for (const Unit& unit : units) {
    if (unit.is_byte) {
      normalized += static_cast<char>(unit.code_point);
    } else {
      append_utf8(normalized, unit.code_point);
    }
  }
}

// True if NFC neither changes nor moves the character, nor joins it to the text before it.
bool is_stable(char32_t code_point) {
  if (code_point < kFirstUnstable || code_point == DecodedCharacter::kInvalid) return true;
  return value_in(kUnstableRanges, code_point) == 0;
}

}  // namespace

CodePointClass class_of(char32_t code_point) {
  const std::uint8_t value =
      code_point < 128 ? kAsciiClasses[code_point] : value_in(kClassRanges, code_point);
  return static_cast<CodePointClass>(value);
}

DecodedCharacter decode_character(std::string_view text) {
  constexpr DecodedCharacter kNone{DecodedCharacter::kInvalid, 1};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return kNone;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < length) return kNone;
  char32_t code_point = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kNone;
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  const bool overlong =
      (length == 3 && code_point < 0x800) || (length == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (overlong || surrogate || code_point > 0x10FFFF) return kNone;
  return {code_point, length};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto continuation = [&](int shift) {
    text += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
    return;
  }
  if (code_point < 0x800) {
    text += static_cast<char>(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    text += static_cast<char>(0xE0 | code_point >> 12);
    continuation(6);
  } else {
    text += static_cast<char>(0xF0 | code_point >> 18);
    continuation(12);
    continuation(6);
  }
  continuation(0);
}

bool normalize_nfc(std::string_view text, std::string& normalized) {
  std::string made;
  std::vector<Unit> units;
  std::size_t copied = 0;       // bytes of the text that are in `made`
  std::size_t last_stable = 0;  // the beginning of the last stable character
  std::size_t at = 0;
  const auto next = [&] { return decode_character(text.substr(at)); };
  while (at < text.size()) {
    const DecodedCharacter character = next();
    if (is_stable(character.code_point)) {
      last_stable = at;
      at += character.bytes;
      continue;
    }
    // From the stable character before it to the next one.
    while (at < text.size()) {
      const DecodedCharacter more = next();
      if (is_stable(more.code_point)) break;
      at += more.bytes;
    }
    made.append(text.substr(copied, last_stable - copied));
    append_nfc(text.substr(last_stable, at - last_stable), units, made);
    copied = last_stable = at;
  }
  if (copied == 0) return false;
  made.append(text.substr(copied));
  if (made == text) return false;
  normalized = std::move(made);
  return true;
}

}  // namespace lintel
