// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/text_operations.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/code_points.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {
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

std::vector<Value> split(Arena& arena, const Text& text, const Text* separator, std::int64_t most) {
  std::vector<Value> parts;
  const std::string_view bytes = text.view();
  const auto add = [&](std::size_t begin, std::size_t end) {
    arena.charge_steps(1);
    arena.charge_memory(sizeof(Value));
    parts.push_back(Value::of(part_of(arena, text, begin, end)));
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
    arena.charge_steps(1);
    arena.charge_memory(sizeof(Value));
    parts.push_back(Value::of(part_of(arena, text, begin, end)));
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

}  // namespace lintel::jinja
