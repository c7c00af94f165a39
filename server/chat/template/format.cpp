// SPDX-License-Identifier: Apache-2.0
// `text % value`, text.format(...) and strftime_now.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/calls.h"
#include "server/chat/template/python_text.h"

namespace lintel::jinja {
namespace {

// Digits after the point: more than a double has.
constexpr std::int64_t kMostDigits = 1'100;

struct FormatStyle {
  char32_t fill = U' ';
  char align = '\0';  // < > ^ =, or none
  char sign = '-';    // - + or a blank
  bool alternate = false;
  char grouping = '\0';  // , or _
  std::int64_t width = 0;
  std::int64_t precision = -1;  // negative: none
  char type = '\0';
};

std::int64_t parse_size(std::string_view text, std::size_t* at) {
  std::int64_t size = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    size = std::min<std::int64_t>(size * 10 + (text[*at] - '0'), std::int64_t{1} << 40);
    ++*at;
  }
  return size;
}

std::string in_base(std::uint64_t number, int base, bool upper) {
  char digits[65];
  const auto end = std::to_chars(digits, digits + sizeof digits, number, base).ptr;
  std::string text(digits, end);
  if (upper) {
    for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  }
  return text;
}

void group_digits(std::string& digits, char separator, std::size_t each) {
  std::size_t end = 0;  // of the leading digits
  while (end < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[end]))) ++end;
  for (std::size_t at = end; at > each;) {
    at -= each;
    digits.insert(at, 1, separator);
  }
}

// The digits of a number by a type of C's printf.
std::string printed(double number, char type, std::int64_t precision, bool alternate) {
  if (precision > kMostDigits) fail_bound("digits of a number", kMostDigits);
  if (std::isnan(number) || std::isinf(number)) {
    const char* const text = std::isnan(number) ? "nan" : "inf";
    const bool upper = type == 'F' || type == 'E' || type == 'G';
    return upper ? (std::isnan(number) ? "NAN" : "INF") : text;
  }
  const std::string format = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  std::array<char, kMostDigits + 400> buffer;
  const int size = std::snprintf(buffer.data(), buffer.size(), format.c_str(),
                                 static_cast<int>(precision < 0 ? 6 : precision), number);
  return {buffer.data(), static_cast<std::size_t>(size)};
}

std::string sign_of(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

void pad(TextBuilder& out, const FormatStyle& style, TextOrigin origin, std::int64_t count) {
  if (count <= 0) return;
  if (style.fill < 0x80) {
    return out.add_repeated(static_cast<char>(style.fill), static_cast<std::uint64_t>(count),
                            origin);
  }
  for (std::int64_t i = 0; i < count; ++i) out.add_character(style.fill, origin);
}

// A number's sign or prefix, and the rest, within its width.
void add_aligned_number(TextBuilder& out, const FormatStyle& style, const std::string& front,
                        const std::string& digits, TextOrigin origin) {
  const std::int64_t room = style.width - static_cast<std::int64_t>(front.size() + digits.size());
  const char align = style.align == '\0' ? '>' : style.align;
  const std::int64_t before = align == '>' ? room : (align == '^' ? room / 2 : 0);
  pad(out, style, origin, before);
  out.add(front, origin);
  if (align == '=') pad(out, style, origin, room);
  out.add(digits, origin);
  if (align == '<') pad(out, style, origin, room);
  if (align == '^') pad(out, style, origin, room - std::max<std::int64_t>(room / 2, 0));
}

void add_aligned_text(TextBuilder& out, Arena& arena, const FormatStyle& style, const Text& text,
                      TextOrigin origin) {
  std::size_t end = text.size;
  std::int64_t characters = text.characters;
  if (style.precision >= 0 && style.precision < characters) {
    characters = style.precision;
    end = byte_of_character(arena, text, static_cast<std::size_t>(characters));
  }
  const std::int64_t room = std::max<std::int64_t>(style.width - characters, 0);
  const char align = style.align == '\0' ? '<' : style.align;
  const std::int64_t before = align == '>' ? room : (align == '^' ? room / 2 : 0);
  pad(out, style, origin, before);
  out.add_part(text, 0, end);
  pad(out, style, origin, room - before);
}

std::int64_t integer_of(const Value& value, char type) {
  if (value.is_integral()) return value.as_integer();
  fail(std::string("format '") + type + "' takes an integer, not " + name_of(value.kind));
}

void add_integer(TextBuilder& out, const FormatStyle& style, std::int64_t number, char type,
                 TextOrigin origin) {
  const int base = type == 'x' || type == 'X' ? 16 : (type == 'o' ? 8 : (type == 'b' ? 2 : 10));
  const std::uint64_t size =
      number < 0 ? ~static_cast<std::uint64_t>(number) + 1 : static_cast<std::uint64_t>(number);
  std::string digits = in_base(size, base, type == 'X');
  if (style.grouping != '\0') group_digits(digits, style.grouping, base == 10 ? 3 : 4);
  std::string front = sign_of(number < 0, style.sign);
  if (style.alternate && base != 10) front += std::string("0") + type;
  add_aligned_number(out, style, front, digits, origin);
}

void add_number(TextBuilder& out, const FormatStyle& style, double number, TextOrigin origin) {
  const bool percent = style.type == '%';
  std::string digits;
  if (style.type == '\0' && style.precision < 0) {
    digits = repr_of(std::fabs(number));
  } else {
    const char type = percent ? 'f' : (style.type == '\0' || style.type == 'n' ? 'g' : style.type);
    const std::int64_t precision = style.precision;
    digits = printed(std::fabs(percent ? number * 100 : number), type, precision, style.alternate);
    // Python prints a number without type as one, not as an integer.
    if (style.type == '\0' && digits.find_first_not_of("0123456789") == std::string::npos) {
      digits += ".0";
    }
  }
  if (style.grouping != '\0') group_digits(digits, style.grouping, 3);
  if (percent) digits += '%';
  add_aligned_number(out, style, sign_of(std::signbit(number) && !std::isnan(number), style.sign),
                     digits, origin);
}

// `%`.
class PercentFormat {
 public:
  PercentFormat(Arena& arena, const Text& format, const Value& value)
      : arena_(arena), format_(format), value_(value), out_(arena) {}

  Value run() {
    const std::string_view bytes = format_.view();
    std::size_t at = 0;
    while (true) {
      const std::size_t sign = bytes.find('%', at);
      arena_.charge_steps(1);
      out_.add_part(format_, at, std::min(sign, bytes.size()));
      if (sign == std::string_view::npos) break;
      at = sign + 1;
      conversion(at);
    }
    const bool all_used = value_.is(Kind::kTuple)
                              ? next_ == value_.list->size
                              : next_ > 0 || value_.is(Kind::kMapping) || value_.is(Kind::kList);
    if (!all_used) fail("operator %: not all arguments are used");
    return Value::of(out_.finish(format_.markup));
  }

 private:
  const Value& next_value() {
    if (value_.is(Kind::kTuple)) {
      if (next_ >= value_.list->size) fail("operator %: there are not enough arguments");
      return value_.list->items[next_++];
    }
    if (next_++ > 0) fail("operator %: there are not enough arguments");
    return value_;
  }

  std::int64_t size_at(std::size_t& at) {
    if (at >= format_.size || format_.data[at] != '*') return parse_size(format_.view(), &at);
    ++at;
    return integer_argument(next_value(), "a width");
  }

  void conversion(std::size_t& at) {
    const std::string_view bytes = format_.view();
    const TextOrigin origin = origin_at(format_, at - 1);
    FormatStyle style;
    style.align = '>';
    const Value* named = nullptr;
    if (at < bytes.size() && bytes[at] == '(') {
      const std::size_t end = bytes.find(')', at);
      if (end == std::string_view::npos) fail("operator %: a key has no ')'");
      if (!value_.is(Kind::kMapping)) fail("operator %: a key needs a mapping");
      named = find_key(arena_, *value_.mapping, bytes.substr(at + 1, end - at - 1));
      if (named == nullptr) fail("operator %: the mapping does not have the key");
      at = end + 1;
    }
    bool left = false, zero = false;
    for (; at < bytes.size() && std::string_view("-+ #0").find(bytes[at]) != std::string_view::npos;
         ++at) {
      left = left || bytes[at] == '-';
      zero = zero || bytes[at] == '0';
      style.alternate = style.alternate || bytes[at] == '#';
      if (bytes[at] == '+' || (bytes[at] == ' ' && style.sign != '+')) style.sign = bytes[at];
    }
    style.width = size_at(at);
    if (style.width < 0) {
      left = true;
      style.width = -style.width;
    }
    if (at < bytes.size() && bytes[at] == '.') {
      ++at;
      style.precision = std::max<std::int64_t>(size_at(at), 0);
    }
    while (at < bytes.size() && (bytes[at] == 'l' || bytes[at] == 'h' || bytes[at] == 'L')) ++at;
    if (at >= bytes.size()) fail("operator %: a format is not complete");
    const char type = bytes[at++];
    if (type == '%') return out_.add("%", origin);
    if (left) style.align = '<';
    const Value& value = named != nullptr ? *named : next_value();
    add(style, type, zero && !left, value, origin);
  }

  void add(FormatStyle& style, char type, bool zero, const Value& value, TextOrigin origin) {
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        const Text* text = type == 's'   ? str_of(arena_, value)
                           : type == 'r' ? repr_of(arena_, value)
                                         : ascii_of(arena_, value);
        if (format_.markup && !text->markup) text = escape_html(arena_, *text);
        return add_aligned_text(out_, arena_, style, *text, origin);
      }
      case 'c': {
        const Text* text = value.is(Kind::kText) ? value.text : character(value);
        if (text->characters != 1) fail("format 'c' takes one character");
        style.precision = -1;
        return add_aligned_text(out_, arena_, style, *text, origin);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        std::int64_t number = 0;
        if (value.is(Kind::kNumber) && type != 'x' && type != 'X' && type != 'o') {
          if (!(std::fabs(value.number) < 9223372036854775808.0)) {
            fail("operator %: the number is beyond 64 bits");
          }
          number = static_cast<std::int64_t>(value.number);
        } else {
          number = integer_of(value, type);
        }
        return add_digits(style, number, type, zero, origin);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.is_numeric()) {
          fail(std::string("format '") + type + "' takes a number, not " + name_of(value.kind));
        }
        style.type = type;
        if (zero) fill_with_zeros(style);
        return add_number(out_, style, value.as_number(), origin);
      }
      default:
        fail("operator %: a format is unknown");
    }
  }

  const Text* character(const Value& value) {
    const std::int64_t code = integer_of(value, 'c');
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail("format 'c' takes a code point");
    }
    std::string bytes;
    append_utf8(bytes, static_cast<char32_t>(code));
    return arena_.copy_text(bytes);
  }

  static void fill_with_zeros(FormatStyle& style) {
    style.fill = U'0';
    style.align = '=';
  }

  void add_digits(FormatStyle& style, std::int64_t number, char type, bool zero,
                  TextOrigin origin) {
    if (zero) fill_with_zeros(style);
    if (style.precision < 0) return add_integer(out_, style, number, type, origin);
    if (style.precision > kMostDigits) fail_bound("digits of a number", kMostDigits);
    FormatStyle plain;
    plain.width = style.precision;
    fill_with_zeros(plain);
    TextBuilder digits(arena_);
    add_integer(digits, plain, number < 0 ? -(number + 1) : number, type, origin);
    // The most negative number has no positive twin.
    if (number < 0) {
      const std::uint64_t size = ~static_cast<std::uint64_t>(number) + 1;
      const int base = type == 'x' || type == 'X' ? 16 : (type == 'o' ? 8 : 10);
      std::string text = in_base(size, base, type == 'X');
      if (text.size() < static_cast<std::size_t>(style.precision)) {
        text.insert(0, static_cast<std::size_t>(style.precision) - text.size(), '0');
      }
      return add_aligned_number(out_, style, prefix(style, type, true), text, origin);
    }
    add_aligned_number(out_, style, prefix(style, type, false),
                       std::string(digits.finish()->view()), origin);
  }

  static std::string prefix(const FormatStyle& style, char type, bool negative) {
    const bool has_base = type == 'x' || type == 'X' || type == 'o';
    return sign_of(negative, style.sign) +
           (style.alternate && has_base ? std::string("0") + type : "");
  }

  Arena& arena_;
  const Text& format_;
  const Value& value_;
  TextBuilder out_;
  std::size_t next_ = 0;
};

// text.format().
class BraceFormat {
 public:
  BraceFormat(Arena& arena, const Text& format, const Arguments& arguments)
      : arena_(arena), format_(format), arguments_(arguments), out_(arena) {}

  Value run() {
    const std::string_view bytes = format_.view();
    std::size_t at = 0, done = 0;
    while (at < bytes.size()) {
      if (bytes[at] != '{' && bytes[at] != '}') {
        ++at;
        continue;
      }
      out_.add_part(format_, done, at);
      arena_.charge_steps(1);
      if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
        out_.add_part(format_, at, at + 1);
        at += 2;
      } else if (bytes[at] == '}') {
        fail("format: a '}' stands alone");
      } else {
        at = field(at + 1);
      }
      done = at;
    }
    out_.add_part(format_, done, bytes.size());
    return Value::of(out_.finish(format_.markup));
  }

 private:
  std::size_t field(std::size_t begin) {
    const std::string_view bytes = format_.view();
    const std::size_t end = bytes.find('}', begin);
    if (end == std::string_view::npos) fail("format: a '{' has no '}'");
    const std::string_view inner = bytes.substr(begin, end - begin);
    if (inner.find('{') != std::string_view::npos) {
      fail("format: a field within a field is not supported");
    }
    const std::size_t name_end = std::min(inner.find_first_of("!:"), inner.size());
    Value value = argument(inner.substr(0, name_end));
    std::size_t at = name_end;
    if (at < inner.size() && inner[at] == '!') {
      if (at + 1 >= inner.size()) fail("format: a conversion is missing");
      value = converted(value, inner[at + 1]);
      at += 2;
      if (at < inner.size() && inner[at] != ':') fail("format: expected ':' after a conversion");
    }
    const std::string_view style = at < inner.size() ? inner.substr(at + 1) : std::string_view();
    add(value, style, origin_at(format_, begin - 1));
    return end + 1;
  }

  Value converted(const Value& value, char how) {
    switch (how) {
      case 's':
        return Value::of(str_of(arena_, value));
      case 'r':
        return Value::of(repr_of(arena_, value));
      case 'a':
        return Value::of(ascii_of(arena_, value));
      default:
        fail("format: a conversion is 's', 'r' or 'a'");
    }
  }

  Value argument(std::string_view name) {
    if (name.find_first_of(".[") != std::string_view::npos) {
      fail("format: attributes and items are not supported");
    }
    if (name.empty()) {
      if (by_number_) fail("format: numbered and unnumbered fields are mixed");
      by_order_ = true;
      return positional(next_++);
    }
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      if (by_order_) fail("format: numbered and unnumbered fields are mixed");
      by_number_ = true;
      std::size_t at = 0;
      return positional(static_cast<std::size_t>(parse_size(name, &at)));
    }
    for (std::size_t i = 0; i < arguments_.num_keywords; ++i) {
      arena_.charge_bytes(4);
      if (arguments_.keywords[i].name->view() == name) return arguments_.keywords[i].value;
    }
    fail("format: argument '" + std::string(name.substr(0, 64)) + "' is missing");
  }
  const Value& positional(std::size_t place) {
    if (place >= arguments_.size) fail("format: there are not enough arguments");
    return arguments_.values[place];
  }

  static FormatStyle parse(std::string_view text) {
    FormatStyle style;
    std::size_t at = 0;
    const auto is_align = [&](std::size_t place) {
      return place < text.size() &&
             std::string_view("<>=^").find(text[place]) != std::string_view::npos;
    };
    if (!text.empty()) {
      const DecodedCharacter first = decode_character(text);
      if (is_align(first.bytes) && first.code_point != DecodedCharacter::kInvalid) {
        style.fill = first.code_point;
        style.align = text[first.bytes];
        at = first.bytes + 1;
      } else if (is_align(0)) {
        style.align = text[0];
        at = 1;
      }
    }
    const auto take = [&](std::string_view any) {
      if (at >= text.size() || any.find(text[at]) == std::string_view::npos) return '\0';
      return text[at++];
    };
    if (const char sign = take("+- ")) style.sign = sign;
    style.alternate = take("#") != '\0';
    if (take("0") != '\0' && style.align == '\0') {
      style.fill = U'0';
      style.align = '=';
    }
    style.width = parse_size(text, &at);
    style.grouping = take(",_");
    if (take(".") != '\0') {
      const std::size_t digits = at;
      style.precision = parse_size(text, &at);
      if (at == digits) fail("format: a precision is missing");
    }
    style.type = take("bcdeEfFgGnosxX%");
    if (at != text.size()) fail("format: a style is not valid");
    return style;
  }

  void add(const Value& value, std::string_view style_text, TextOrigin origin) {
    if (style_text.empty()) return add_escaped(*str_of(arena_, value));
    FormatStyle style = parse(style_text);
    if (value.is(Kind::kText)) {
      if (style.type != '\0' && style.type != 's') fail("format: a text has no such style");
      if (style.align == '=' && style.fill == U'0') style.align = '<';
      if (style.align == '=') fail("format: '=' aligns numbers only");
      return add_aligned_text(out_, arena_, style, *value.text, origin);
    }
    const std::string_view number_types = "eEfFgGn%";
    const bool as_number =
        number_types.find(style.type) != std::string_view::npos && style.type != '\0';
    if (value.is(Kind::kNumber) || (value.is_integral() && as_number)) {
      if (style.type != '\0' && !as_number) fail("format: a number has no such style");
      return add_number(out_, style, value.as_number(), origin);
    }
    if (value.is_integral()) {
      if (style.type == 's') fail("format: an integer has no such style");
      if (style.precision >= 0) fail("format: an integer has no precision");
      if (style.type == 'c') fail("format: style 'c' is not supported");
      return add_integer(out_, style, value.as_integer(), style.type == '\0' ? 'd' : style.type,
                         origin);
    }
    fail(std::string("format: ") + name_of(value.kind) + " has no such style");
  }

  void add_escaped(const Text& text) {
    out_.add(format_.markup && !text.markup ? *escape_html(arena_, text) : text);
  }

  Arena& arena_;
  const Text& format_;
  const Arguments& arguments_;
  TextBuilder out_;
  std::size_t next_ = 0;
  bool by_order_ = false;
  bool by_number_ = false;
};

int days_before_month(int year, int month) {
  constexpr int kDays[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return kDays[month - 1] + (leap && month > 2 ? 1 : 0);
}

// 0: Sunday.
int day_of_week(int year, int month, int day) {
  const int y = year - 1;
  return (y * 365 + y / 4 - y / 100 + y / 400 + days_before_month(year, month) + day) % 7;
}

std::string padded(int number, int width) {
  std::string digits = std::to_string(number);
  if (digits.size() < static_cast<std::size_t>(width)) {
    digits.insert(0, static_cast<std::size_t>(width) - digits.size(), '0');
  }
  return digits;
}

std::string time_part(const LocalTime& time, char directive) {
  constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
  constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
  const std::string month = kMonths[time.month - 1];
  const std::string day = kDays[day_of_week(time.year, time.month, time.day)];
  switch (directive) {
    case 'Y':
      return std::to_string(time.year);
    case 'y':
      return padded(time.year % 100, 2);
    case 'm':
      return padded(time.month, 2);
    case 'd':
      return padded(time.day, 2);
    case 'H':
      return padded(time.hour, 2);
    case 'M':
      return padded(time.minute, 2);
    case 'S':
      return padded(time.second, 2);
    case 'B':
      return month;
    case 'b':
      return month.substr(0, 3);
    case 'A':
      return day;
    case 'a':
      return day.substr(0, 3);
    case 'j':
      return padded(days_before_month(time.year, time.month) + time.day, 3);
    case 'p':
      return time.hour < 12 ? "AM" : "PM";
    case 'I':
      return padded((time.hour + 11) % 12 + 1, 2);
    case 'Z':
      return time.zone;
    case '%':
      return "%";
    default:
      fail(std::string("strftime_now: directive '%") +
           (directive > ' ' && directive < 0x7F ? directive : '?') + "' is not supported");
  }
}

}  // namespace

Value format_percent(Arena& arena, const Text& format, const Value& value) {
  return PercentFormat(arena, format, value).run();
}

Value format_braces(Arena& arena, const Text& format, const Arguments& arguments) {
  return BraceFormat(arena, format, arguments).run();
}

const Text* format_time(Arena& arena, const LocalTime& time, const Text& format) {
  TextBuilder out(arena);
  const std::string_view bytes = format.view();
  std::size_t at = 0;
  while (true) {
    const std::size_t sign = bytes.find('%', at);
    out.add_part(format, at, std::min(sign, bytes.size()));
    if (sign == std::string_view::npos || sign + 1 >= bytes.size()) {
      if (sign != std::string_view::npos) out.add("%");
      return out.finish();
    }
    arena.charge_steps(1);
    at = sign + 2;
    // "%-d": without zeros in front, as C libraries have it.
    const bool plain = bytes[sign + 1] == '-' && at < bytes.size();
    std::string part = time_part(time, plain ? bytes[at++] : bytes[sign + 1]);
    if (plain) part.erase(0, std::min(part.find_first_not_of('0'), part.size() - 1));
    out.add(part);
  }
}

}  // namespace lintel::jinja
