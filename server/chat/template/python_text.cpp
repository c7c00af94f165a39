// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/code_points.h"
#include "server/chat/template/interpreter.h"

namespace lintel::jinja {
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
