// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/interpreter.h"

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

namespace {

constexpr std::size_t kNoPlace = std::string_view::npos;

const Text* with_markup(Arena& arena, const Text* text, bool markup) {
  if (text->markup == markup) return text;
  Text copy = *text;
  copy.markup = markup;
  return arena.make(copy);
}

// Calls visit(code, begin, bytes, origin) for each character.
template <typename Visit>
void for_each_character(Arena& arena, const Text& text, Visit visit) {
  arena.charge_bytes(text.size);
  for_each_run(text, 0, text.size, [&](std::size_t begin, std::size_t end, TextOrigin origin) {
    while (begin < end) {
      const DecodedCharacter character = decode_character(text.view().substr(begin, end - begin));
      visit(character.code_point, begin, character.bytes, origin);
      begin += character.bytes;
    }
  });
}

// A text with each character replaced: change(code, begin) is a CaseMapping.
template <typename Change>
const Text* change_characters(Arena& arena, const Text& text, Change change) {
  TextBuilder builder(arena);
  std::string bytes;
  TextOrigin current = text.origin;
  for_each_character(arena, text,
                     [&](char32_t code, std::size_t begin, std::size_t size, TextOrigin origin) {
                       if (origin != current) {
                         builder.add(bytes, current);
                         bytes.clear();
                         current = origin;
                       }
                       if (code == DecodedCharacter::kInvalid) {
                         bytes.append(text.view().substr(begin, size));
                         return;
                       }
                       const CaseMapping mapping = change(code, begin);
                       for (int i = 0; i < mapping.size; ++i) append_utf8(bytes, mapping.codes[i]);
                     });
  builder.add(bytes, current);
  return builder.finish(text.markup);
}

// True if a capital sigma at `begin` ends a word, by Python's rule.
bool is_final_sigma(Arena& arena, std::string_view text, std::size_t begin) {
  bool follows = false;
  std::size_t at = begin;
  while (at > 0) {
    const std::size_t before = begin_of_last(text, at);
    const char32_t code = decode_character(text.substr(before)).code_point;
    at = before;
    if (is_case_ignorable(code)) continue;
    follows = is_cased(code);
    break;
  }
  arena.charge_bytes(begin - at);
  if (!follows) return false;
  const std::size_t first = begin + 2;
  at = first;
  while (at < text.size()) {
    const DecodedCharacter character = decode_character(text.substr(at));
    at += character.bytes;
    if (is_case_ignorable(character.code_point)) continue;
    follows = !is_cased(character.code_point);
    break;
  }
  arena.charge_bytes(at - first);
  return follows;
}

CaseMapping lower_at(Arena& arena, const Text& text, char32_t code, std::size_t begin) {
  if (code == 0x3A3)
    return {{is_final_sigma(arena, text.view(), begin) ? 0x3C2u : 0x3C3u, 0, 0}, 1};
  return lower_of(code);
}

bool is_line_end(char32_t code) {
  return (code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

bool contains_character(std::string_view characters, std::string_view one) {
  return memmem(characters.data(), characters.size(), one.data(), one.size()) != nullptr;
}

}  // namespace

std::size_t find_bytes(Arena& arena, std::string_view text, std::string_view wanted,
                       std::size_t from) {
  if (from > text.size()) return kNoPlace;
  if (wanted.empty()) return from;
  const void* const found =
      memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  const std::size_t place =
      found == nullptr ? kNoPlace
                       : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  arena.charge_bytes((place == kNoPlace ? text.size() : place + wanted.size()) - from);
  return place;
}

std::size_t find_last_bytes(Arena& arena, std::string_view text, std::string_view wanted) {
  // memmem is linear; std::string_view::rfind is not.
  const std::string reversed(text.rbegin(), text.rend());
  const std::string wanted_reversed(wanted.rbegin(), wanted.rend());
  const std::size_t place = find_bytes(arena, reversed, wanted_reversed);
  arena.charge_bytes(text.size());
  return place == kNoPlace ? kNoPlace : text.size() - place - wanted.size();
}

const Text* strip(Arena& arena, const Text& text, const Text* characters, Side side) {
  const std::string_view bytes = text.view();
  std::size_t begin = 0, end = bytes.size();
  if (characters == nullptr) {
    if (side != Side::kRight) begin = skip_spaces(bytes, 0);
    if (side != Side::kLeft) end = skip_spaces_back(bytes, end);
    if (begin > end) begin = end;
  } else {
    const std::string_view cut = characters->view();
    while (side != Side::kRight && begin < end) {
      const std::size_t size = decode_character(bytes.substr(begin)).bytes;
      arena.charge_bytes(cut.size() + 1);
      if (!contains_character(cut, bytes.substr(begin, size))) break;
      begin += size;
    }
    while (side != Side::kLeft && end > begin) {
      const std::size_t last = begin_of_last(bytes, end);
      arena.charge_bytes(cut.size() + 1);
      if (!contains_character(cut, bytes.substr(last, end - last))) break;
      end = last;
    }
  }
  arena.charge_bytes(bytes.size() - (end - begin));
  return part_of(arena, text, begin, end);
}

const Text* replace(Arena& arena, const Text& text, const Text& from, const Text& to,
                    std::int64_t count) {
  TextBuilder builder(arena);
  std::size_t done = 0;
  if (from.size == 0) {
    // An empty `from` matches before each character, and at the end.
    std::size_t at = 0;
    for (std::int64_t i = 0; i != count; ++i) {
      builder.add_part(text, done, at);
      done = at;
      builder.add(to);
      arena.charge_steps(1);
      if (at >= text.size) break;
      at += decode_character(text.view().substr(at)).bytes;
    }
  } else {
    for (std::int64_t i = 0; i != count; ++i) {
      const std::size_t place = find_bytes(arena, text.view(), from.view(), done);
      if (place == kNoPlace) break;
      builder.add_part(text, done, place);
      builder.add(to);
      done = place + from.size;
    }
    if (done == 0) return &text;
  }
  builder.add_part(text, done, text.size);
  return builder.finish(text.markup);
}

namespace {

// Appends a part of a text to those that it is split into.
void add_part(Arena& arena, const Text& text, std::size_t begin, std::size_t end,
              std::vector<Value>& parts) {
  arena.charge_steps(1);
  arena.charge_memory(sizeof(Value));
  parts.push_back(Value::of(part_of(arena, text, begin, end)));
}

}  // namespace

std::vector<Value> split(Arena& arena, const Text& text, const Text* separator, std::int64_t most) {
  std::vector<Value> parts;
  const std::string_view bytes = text.view();
  const auto add = [&](std::size_t begin, std::size_t end) {
    add_part(arena, text, begin, end, parts);
  };
  if (separator != nullptr) {
    if (separator->size == 0) fail("split: the separator is empty");
    std::size_t begin = 0;
    for (std::int64_t i = 0; i != most; ++i) {
      const std::size_t place = find_bytes(arena, bytes, separator->view(), begin);
      if (place == kNoPlace) break;
      add(begin, place);
      begin = place + separator->size;
    }
    add(begin, bytes.size());
    return parts;
  }
  arena.charge_bytes(bytes.size());
  std::size_t at = skip_spaces(bytes, 0);
  for (std::int64_t i = 0; at < bytes.size(); ++i) {
    if (i == most) {
      add(at, skip_spaces_back(bytes, bytes.size()));
      break;
    }
    std::size_t end = at;
    while (end < bytes.size()) {
      const DecodedCharacter character = decode_character(bytes.substr(end));
      if (is_space(character.code_point)) break;
      end += character.bytes;
    }
    add(at, end);
    at = skip_spaces(bytes, end);
  }
  return parts;
}

std::vector<Value> split_right(Arena& arena, const Text& text, const Text* separator,
                               std::int64_t most) {
  std::vector<Value> parts;
  const std::string_view bytes = text.view();
  const auto add = [&](std::size_t begin, std::size_t end) {
    add_part(arena, text, begin, end, parts);
  };
  if (separator != nullptr) {
    if (separator->size == 0) fail("rsplit: the separator is empty");
    const std::string reversed(bytes.rbegin(), bytes.rend());
    const std::string wanted(separator->view().rbegin(), separator->view().rend());
    arena.charge_bytes(bytes.size());
    std::size_t done = 0;  // of `reversed`
    for (std::int64_t i = 0; i != most; ++i) {
      const std::size_t place = find_bytes(arena, reversed, wanted, done);
      if (place == kNoPlace) break;
      add(bytes.size() - place, bytes.size() - done);
      done = place + wanted.size();
    }
    add(0, bytes.size() - done);
  } else {
    arena.charge_bytes(bytes.size());
    std::size_t at = skip_spaces_back(bytes, bytes.size());
    for (std::int64_t i = 0; at > 0; ++i) {
      if (i == most) {
        add(skip_spaces(bytes, 0), at);
        break;
      }
      std::size_t begin = at;
      while (begin > 0) {
        const std::size_t last = begin_of_last(bytes, begin);
        if (is_space(decode_character(bytes.substr(last)).code_point)) break;
        begin = last;
      }
      add(begin, at);
      at = skip_spaces_back(bytes, begin);
    }
  }
  std::ranges::reverse(parts);
  return parts;
}

std::vector<Value> split_lines(Arena& arena, const Text& text, bool keeps_ends) {
  std::vector<Value> lines;
  const std::string_view bytes = text.view();
  arena.charge_bytes(bytes.size());
  std::size_t begin = 0;
  const auto add = [&](std::size_t end, std::size_t next) {
    arena.charge_steps(1);
    arena.charge_memory(sizeof(Value));
    lines.push_back(Value::of(part_of(arena, text, begin, keeps_ends ? next : end)));
    begin = next;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const DecodedCharacter character = decode_character(bytes.substr(at));
    const std::size_t end = at;
    at += character.bytes;
    if (!is_line_end(character.code_point)) continue;
    if (character.code_point == U'\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    add(end, at);
  }
  if (begin < bytes.size()) add(bytes.size(), bytes.size());
  return lines;
}

const Text* join(Arena& arena, const Text& separator, const List& items, bool converts) {
  TextBuilder builder(arena);
  for (std::size_t i = 0; i < items.size; ++i) {
    arena.charge_steps(1);
    if (i > 0) builder.add(separator);
    const Value& item = items.items[i];
    if (!converts && !item.is(Kind::kText)) {
      fail(std::string("join: item ") + std::to_string(i) + " is " + name_of(item.kind) +
           ", expected a text");
    }
    if (!converts && separator.markup && !item.text->markup) {
      builder.add(*escape_html(arena, *item.text));
    } else {
      add_str(builder, arena, item);
    }
  }
  return builder.finish(!converts && separator.markup);
}

const Text* escape_html(Arena& arena, const Text& text) {
  TextBuilder builder(arena);
  for_each_run(text, 0, text.size, [&](std::size_t begin, std::size_t end, TextOrigin origin) {
    std::size_t done = begin;
    for (std::size_t at = begin; at < end; ++at) {
      const char* escape = nullptr;
      switch (text.data[at]) {
        case '&':
          escape = "&amp;";
          break;
        case '<':
          escape = "&lt;";
          break;
        case '>':
          escape = "&gt;";
          break;
        case '"':
          escape = "&#34;";
          break;
        case '\'':
          escape = "&#39;";
          break;
        default:
          continue;
      }
      builder.add(text.view().substr(done, at - done), origin);
      builder.add(escape, origin);
      done = at + 1;
    }
    builder.add(text.view().substr(done, end - done), origin);
  });
  return builder.finish(true);
}

const Text* to_upper(Arena& arena, const Text& text) {
  return change_characters(arena, text, [](char32_t code, std::size_t) { return upper_of(code); });
}

const Text* to_lower(Arena& arena, const Text& text) {
  return change_characters(arena, text, [&](char32_t code, std::size_t begin) {
    return lower_at(arena, text, code, begin);
  });
}

const Text* capitalize(Arena& arena, const Text& text) {
  return change_characters(arena, text, [&](char32_t code, std::size_t begin) {
    return begin == 0 ? title_of(code) : lower_at(arena, text, code, begin);
  });
}

const Text* to_title(Arena& arena, const Text& text) {
  bool continues = false;
  return change_characters(arena, text, [&](char32_t code, std::size_t begin) {
    const CaseMapping mapping = continues ? lower_at(arena, text, code, begin) : title_of(code);
    continues = is_cased(code);
    return mapping;
  });
}

const Text* title_of_words(Arena& arena, const Text& text) {
  // Words begin after a blank, a hyphen or an opening bracket.
  TextBuilder builder(arena);
  const auto is_separator = [](char32_t code) {
    return code == U'-' || code == U'(' || code == U'{' || code == U'[' || code == U'<' ||
           is_space(code);
  };
  const std::string_view bytes = text.view();
  arena.charge_bytes(bytes.size());
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::size_t end = at;
    const bool separates = is_separator(decode_character(bytes.substr(at)).code_point);
    std::size_t first = 0;  // bytes of the first character
    while (end < bytes.size()) {
      const DecodedCharacter character = decode_character(bytes.substr(end));
      if (is_separator(character.code_point) != separates) break;
      if (end == at) first = character.bytes;
      end += character.bytes;
    }
    if (separates) {
      builder.add_part(text, at, end);
    } else {
      builder.add(*to_upper(arena, *part_of(arena, text, at, at + first)));
      builder.add(*to_lower(arena, *part_of(arena, text, at + first, end)));
    }
    at = end;
  }
  return builder.finish();
}

bool is_lower_text(Arena& arena, const Text& text) {
  bool cased = false, other = false;
  for_each_character(arena, text, [&](char32_t code, std::size_t, std::size_t, TextOrigin) {
    other = other || is_uppercase(code) || is_titlecase(code);
    cased = cased || is_lowercase(code);
  });
  return cased && !other;
}

bool is_upper_text(Arena& arena, const Text& text) {
  bool cased = false, other = false;
  for_each_character(arena, text, [&](char32_t code, std::size_t, std::size_t, TextOrigin) {
    other = other || is_lowercase(code) || is_titlecase(code);
    cased = cased || is_uppercase(code);
  });
  return cased && !other;
}

bool is_all(Arena& arena, const Text& text, bool (*fits)(char32_t)) {
  bool all = text.size > 0;
  for_each_character(arena, text, [&](char32_t code, std::size_t, std::size_t, TextOrigin) {
    all = all && fits(code);
  });
  return all;
}

std::size_t count_words(Arena& arena, const Text& text) {
  std::size_t words = 0;
  bool inside = false;
  for_each_character(arena, text, [&](char32_t code, std::size_t, std::size_t, TextOrigin) {
    const bool is_word = code == U'_' || is_alphanumeric(code);
    words += is_word && !inside ? 1 : 0;
    inside = is_word;
  });
  return words;
}

const Text* concatenate(Arena& arena, const Text& a, const Text& b) {
  const bool markup = a.markup || b.markup;
  if (!markup && b.size == 0) return &a;
  if (!markup && a.size == 0) return &b;
  TextBuilder builder(arena);
  builder.add(markup && !a.markup ? *escape_html(arena, a) : a);
  builder.add(markup && !b.markup ? *escape_html(arena, b) : b);
  return builder.finish(markup);
}

const Text* repeat(Arena& arena, const Text& text, std::int64_t times) {
  if (times <= 0 || text.size == 0) return with_markup(arena, arena.text_of({}), text.markup);
  if (static_cast<std::uint64_t>(times) > arena.limits().text_bytes / text.size) {
    fail_bound("text_bytes", arena.limits().text_bytes);
  }
  TextBuilder builder(arena);
  for (std::int64_t i = 0; i < times; ++i) builder.add(text);
  return builder.finish(text.markup);
}

namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

void check_text_depth(int depth) {
  if (depth > kMaxValueDepth) fail_bound("value depth", kMaxValueDepth);
}

std::string hex(char32_t code, int digits) {
  std::string text(static_cast<std::size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, code >>= 4)
    text[static_cast<std::size_t>(i)] = kHexDigits[code & 15];
  return text;
}

// repr() and ascii().
class ReprWriter {
 public:
  ReprWriter(TextBuilder& out, Arena& arena, bool ascii)
      : out_(out), arena_(arena), ascii_(ascii) {}

  void add(const Value& value, int depth) {
    check_text_depth(depth);
    arena_.charge_steps(1);
    switch (value.kind) {
      case Kind::kMissing:
      case Kind::kUndefined:
        return out_.add("Undefined");
      case Kind::kText:
        return add_quoted(*value.text);
      case Kind::kList:
        return add_items("[", *value.list, "]", depth);
      case Kind::kTuple:
        return add_items("(", *value.list, value.list->size == 1 ? ",)" : ")", depth);
      case Kind::kMapping:
        return add_pairs(value.mapping->pairs, value.mapping->size, depth);
      case Kind::kView:
        return add_view(value, depth);
      case Kind::kNamespace:
        out_.add("<Namespace ");
        add_pairs(value.names->pairs.data(), value.names->pairs.size(), depth);
        return out_.add(">");
      default:
        return add_str(out_, arena_, value);
    }
  }

 private:
  void add_items(const char* begin, const List& list, const char* end, int depth) {
    out_.add(begin);
    for (std::size_t i = 0; i < list.size; ++i) {
      if (i > 0) out_.add(", ");
      add(list.items[i], depth + 1);
    }
    out_.add(end);
  }

  void add_pairs(const Pair* pairs, std::size_t size, int depth) {
    out_.add("{");
    for (std::size_t i = 0; i < size; ++i) {
      if (i > 0) out_.add(", ");
      add(pairs[i].key, depth + 1);
      out_.add(": ");
      add(pairs[i].value, depth + 1);
    }
    out_.add("}");
  }

  void add_view(const Value& view, int depth) {
    constexpr const char* kNames[] = {"dict_keys([", "dict_values([", "dict_items(["};
    add_items(kNames[static_cast<int>(view.view->kind)], items_of(arena_, view), "])", depth);
  }

  void add_quoted(const Text& text) {
    const std::string_view bytes = text.view();
    const bool has_single = bytes.find('\'') != std::string_view::npos;
    const bool has_double = bytes.find('"') != std::string_view::npos;
    const char quote = has_single && !has_double ? '"' : '\'';
    if (text.markup) out_.add("Markup(");
    out_.add(std::string_view(&quote, 1));
    for_each_run(text, 0, text.size, [&](std::size_t begin, std::size_t end, TextOrigin origin) {
      add_escaped(bytes.substr(begin, end - begin), quote, origin);
    });
    out_.add(std::string_view(&quote, 1));
    if (text.markup) out_.add(")");
  }

  void add_escaped(std::string_view bytes, char quote, TextOrigin origin) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const DecodedCharacter character = decode_character(bytes.substr(at));
      const std::string escape = escape_of(character.code_point, quote);
      if (!escape.empty()) {
        out_.add(bytes.substr(done, at - done), origin);
        out_.add(escape, origin);
        done = at + character.bytes;
      }
      at += character.bytes;
    }
    out_.add(bytes.substr(done), origin);
  }

  // Empty: the character stands for itself.
  std::string escape_of(char32_t code, char quote) const {
    switch (code) {
      case U'\n':
        return "\\n";
      case U'\r':
        return "\\r";
      case U'\t':
        return "\\t";
      case U'\\':
        return "\\\\";
      default:
        break;
    }
    if (code == static_cast<char32_t>(quote)) return std::string("\\") + quote;
    if (code == DecodedCharacter::kInvalid || (is_printable(code) && (!ascii_ || code < 0x80))) {
      return {};
    }
    if (code < 0x100) return "\\x" + hex(code, 2);
    return code < 0x10000 ? "\\u" + hex(code, 4) : "\\U" + hex(code, 8);
  }

  TextBuilder& out_;
  Arena& arena_;
  const bool ascii_;
};

class JsonWriter {
 public:
  JsonWriter(TextBuilder& out, Arena& arena, const JsonStyle& style)
      : out_(out), arena_(arena), style_(style) {}

  void add(const Value& value, int depth) {
    check_text_depth(depth);
    arena_.charge_steps(1);
    switch (value.kind) {
      case Kind::kNone:
        return out_.add("null");
      case Kind::kBool:
        return out_.add(value.boolean ? "true" : "false");
      case Kind::kNumber:
        return out_.add(number(value.number));
      case Kind::kInteger:
      case Kind::kBigInteger:
        return add_str(out_, arena_, value);
      case Kind::kText:
        return add_quoted(*value.text);
      case Kind::kList:
      case Kind::kTuple:
        return add_list(*value.list, depth);
      case Kind::kMapping:
        return add_mapping(*value.mapping, depth);
      default:
        fail(std::string("tojson: JSON has nothing for ") + name_of(value.kind));
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_of(value);
  }

  void add_line(int depth) {
    if (style_.indent == nullptr) return;
    out_.add("\n");
    for (int i = 0; i < depth; ++i) out_.add(*style_.indent);
  }

  void add_list(const List& list, int depth) {
    if (list.size == 0) return out_.add("[]");
    out_.add("[");
    for (std::size_t i = 0; i < list.size; ++i) {
      if (i > 0) out_.add(*style_.between);
      add_line(depth + 1);
      add(list.items[i], depth + 1);
    }
    add_line(depth);
    out_.add("]");
  }

  void add_mapping(const Mapping& mapping, int depth) {
    if (mapping.size == 0) return out_.add("{}");
    std::vector<const Pair*> pairs(mapping.size);
    for (std::size_t i = 0; i < mapping.size; ++i) pairs[i] = &mapping.pairs[i];
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          pairs, [&](const Pair* a, const Pair* b) { return is_less(arena_, a->key, b->key); });
    }
    out_.add("{");
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) out_.add(*style_.between);
      add_line(depth + 1);
      add_key(pairs[i]->key);
      out_.add(*style_.after_key);
      add(pairs[i]->value, depth + 1);
    }
    add_line(depth);
    out_.add("}");
  }

  void add_key(const Value& key) {
    switch (key.kind) {
      case Kind::kText:
        return add_quoted(*key.text);
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInteger:
      case Kind::kBigInteger:
      case Kind::kNumber:
        out_.add("\"");
        add(key, 0);
        return out_.add("\"");
      default:
        fail(std::string("tojson: ") + name_of(key.kind) + " is no key of JSON");
    }
  }

  void add_quoted(const Text& text) {
    const std::string_view bytes = text.view();
    out_.add("\"");
    for_each_run(text, 0, text.size, [&](std::size_t begin, std::size_t end, TextOrigin origin) {
      add_escaped(bytes.substr(begin, end - begin), origin);
    });
    out_.add("\"");
  }

  void add_escaped(std::string_view bytes, TextOrigin origin) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const auto byte = static_cast<unsigned char>(bytes[at]);
      if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x80 || !style_.ensure_ascii)) {
        if (byte != 0x7F || !style_.ensure_ascii) {
          ++at;
          continue;
        }
      }
      const DecodedCharacter character = decode_character(bytes.substr(at));
      out_.add(bytes.substr(done, at - done), origin);
      out_.add(escape_of(character.code_point), origin);
      at += character.bytes;
      done = at;
    }
    out_.add(bytes.substr(done), origin);
  }

  static std::string escape_of(char32_t code) {
    switch (code) {
      case U'"':
        return "\\\"";
      case U'\\':
        return "\\\\";
      case U'\n':
        return "\\n";
      case U'\r':
        return "\\r";
      case U'\t':
        return "\\t";
      case U'\b':
        return "\\b";
      case U'\f':
        return "\\f";
      default:
        break;
    }
    if (code > 0x10FFFF) code = 0xFFFD;
    if (code < 0x10000) return "\\u" + hex(code, 4);
    return "\\u" + hex(0xD800 + ((code - 0x10000) >> 10), 4) + "\\u" +
           hex(0xDC00 + ((code - 0x10000) & 0x3FF), 4);
  }

  TextBuilder& out_;
  Arena& arena_;
  const JsonStyle& style_;
};

}  // namespace

std::string repr_of(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));  // -d.ddde-dd
  const std::size_t mark = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(mark + 1)).c_str());
  std::string digits, sign;
  for (const char c : text.substr(0, mark)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    std::string result = sign + digits[0];
    if (digits.size() > 1) result += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return result + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

void add_str(TextBuilder& builder, Arena& arena, const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      return builder.add("None");
    case Kind::kBool:
      return builder.add(value.boolean ? "True" : "False");
    case Kind::kInteger:
      return builder.add(std::to_string(value.integer));
    case Kind::kBigInteger:
      return builder.add(value.text->view());
    case Kind::kNumber:
      return builder.add(repr_of(value.number));
    case Kind::kText:
      return builder.add(*value.text);
    case Kind::kRange: {
      const Range& range = *value.range;
      builder.add("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop) +
                  (range.step == 1 ? ")" : ", " + std::to_string(range.step) + ")"));
      return;
    }
    case Kind::kIterator:
      return builder.add("<generator object>");
    case Kind::kMacro: {
      const Value name = macro_name(*value.macro);
      builder.add("<Macro ");
      if (name.is(Kind::kNone)) {
        builder.add("anonymous");
      } else {
        ReprWriter(builder, arena, false).add(name, 0);
      }
      return builder.add(">");
    }
    case Kind::kMethod:
      return builder.add("<built-in method>");
    case Kind::kFunction:
      return builder.add("<function>");
    case Kind::kLoop:
      return builder.add("<LoopContext>");
    default:
      return ReprWriter(builder, arena, false).add(value, 0);
  }
}

const Text* str_of(Arena& arena, const Value& value) {
  if (value.is(Kind::kText)) return value.text;
  TextBuilder builder(arena);
  add_str(builder, arena, value);
  return builder.finish();
}

const Text* repr_of(Arena& arena, const Value& value) {
  TextBuilder builder(arena);
  ReprWriter(builder, arena, false).add(value, 0);
  return builder.finish();
}

const Text* ascii_of(Arena& arena, const Value& value) {
  TextBuilder builder(arena);
  ReprWriter(builder, arena, true).add(value, 0);
  return builder.finish();
}

const Text* json_of(Arena& arena, const Value& value, const JsonStyle& style) {
  TextBuilder builder(arena);
  JsonWriter(builder, arena, style).add(value, 0);
  return builder.finish();
}

}  // namespace lintel::jinja
