// SPDX-License-Identifier: Apache-2.0
#include "server/chat/template/lexer.h"

#include <algorithm>
#include <cstring>

#include "model/tokenizer/unicode.h"
#include "server/chat/template/python_text.h"
#include "server/chat/template/template.h"

namespace lintel::jinja {
namespace {

constexpr std::size_t kNowhere = std::string_view::npos;

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_ascii_digit(c) ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_digit_of(int base, char c) {
  const char lower = static_cast<char>(c | 0x20);
  if (base == 16 && lower >= 'a' && lower <= 'f') return true;
  return c >= '0' && c < '0' + std::min(base, 10);
}

// The end of digits with single underscores between them; `begin` if there are none.
std::size_t end_of_digits(std::string_view text, std::size_t begin, int base) {
  std::size_t at = begin;
  while (at < text.size()) {
    if (is_digit_of(base, text[at])) {
      ++at;
    } else if (text[at] == '_' && at > begin && at + 1 < text.size() &&
               is_digit_of(base, text[at + 1])) {
      at += 2;
    } else {
      break;
    }
  }
  return at;
}

// One escape after a backslash at `at`. Returns how many bytes it takes; 0: it is none.
std::size_t read_escape(std::string_view text, std::size_t at, std::string& out) {
  constexpr std::string_view kFrom = "\n\\'\"abfnrtv";
  constexpr std::string_view kTo = "\n\\'\"\a\b\f\n\r\t\v";
  const char c = text[at];
  if (c == '\n') return 1;  // the line continues
  if (const std::size_t place = kFrom.find(c); place != kNowhere) {
    out += kTo[place];
    return 1;
  }
  const auto read_code = [&](std::size_t digits, int base, std::size_t from) {
    char32_t code = 0;
    std::size_t n = 0;
    while (n < digits && from + n < text.size() && is_digit_of(base, text[from + n])) {
      const char digit = text[from + n];
      code = code * static_cast<char32_t>(base) +
             static_cast<char32_t>(is_ascii_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
      ++n;
    }
    return std::pair{code, n};
  };
  if (c >= '0' && c <= '7') {
    const auto [code, digits] = read_code(3, 8, at);
    append_utf8(out, code);
    return digits;
  }
  const std::size_t wanted = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
  if (wanted == 0) return 0;
  auto [code, digits] = read_code(wanted, 16, at + 1);
  if (digits < wanted || code > 0x10FFFF) return kNowhere;
  std::size_t taken = 1 + digits;
  if (code >= 0xD800 && code < 0xDC00 && text.substr(at + taken).starts_with("\\u")) {
    const auto [low, low_digits] = read_code(4, 16, at + taken + 2);
    if (low_digits == 4 && low >= 0xDC00 && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      taken += 6;
    }
  }
  // Python's lone surrogate cannot be encoded either.
  append_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
  return taken;
}

}  // namespace

std::string with_unix_lines(std::string_view source) {
  std::string lines;
  lines.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      lines += source[i];
    } else if (i + 1 >= source.size() || source[i + 1] != '\n') {
      lines += '\n';
    }
  }
  if (lines.ends_with('\n')) lines.pop_back();
  return lines;
}

void Lexer::refuse(const std::string& what) const {
  throw TemplateError(TemplateError::Kind::kSyntax, line_, what);
}

void Lexer::move_to(std::size_t place) {
  line_ += static_cast<std::size_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                               source_.begin() + static_cast<std::ptrdiff_t>(place),
                                               '\n'));
  at_ = place;
}

Token Lexer::next() {
  Token token;
  while (state_ == State::kOutside) {
    if (at_ >= source_.size()) {
      token.line = line_;
      return token;
    }
    if (outside(token)) return token;
  }
  return inside();
}

std::string_view Lexer::data_before(std::size_t tag, char sign) const {
  const std::string_view data = source_.substr(at_, tag - at_);
  if (sign == '-') return data.substr(0, skip_spaces_back(data, data.size()));
  if (sign == '+' || source_[tag + 1] == '{') return data;
  const std::size_t line = data.rfind('\n') + 1;  // 0: there is none
  const bool begins_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
  if (begins_line && skip_spaces(data, line) == data.size()) return data.substr(0, line);
  return data;
}

bool Lexer::outside(Token& token) {
  std::size_t tag = at_;
  while (true) {
    tag = source_.find('{', tag);
    if (tag == kNowhere || tag + 1 >= source_.size()) {
      tag = kNowhere;
      break;
    }
    const char second = source_[tag + 1];
    if (second == '{' || second == '%' || second == '#') break;
    ++tag;
  }
  token.kind = TokenKind::kData;
  token.line = line_;
  if (tag == kNowhere) {
    token.text = source_.substr(at_);
    move_to(source_.size());
    return true;
  }
  const char second = source_[tag + 1];
  const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  const std::string_view data = data_before(tag, sign);
  if (!data.empty()) {
    token.text = data;
    // The tag comes next, without the white space before it.
    move_to(tag);
    return true;
  }
  move_to(tag);
  const std::size_t after = tag + (sign == '-' || sign == '+' ? 3 : 2);
  if (second == '#') {
    move_to(after);
    skip_comment();
    return false;
  }
  if (second == '%' && skip_raw_begin(after)) {
    token = raw_data();
    return !token.text.empty();
  }
  token.kind = second == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin;
  token.line = line_;
  move_to(after);
  state_ = second == '{' ? State::kVariable : State::kBlock;
  return true;
}

// The place after a tag that ends at `place`, and after white space that goes with it.
std::size_t Lexer::end_of_tag(std::size_t place, std::string_view end) const {
  const std::string_view rest = source_.substr(place);
  const bool is_variable = end == "}}";
  if (rest.starts_with('-') && rest.substr(1).starts_with(end)) {
    return skip_spaces(source_, place + 1 + end.size());
  }
  if (!is_variable && rest.starts_with('+') && rest.substr(1).starts_with(end)) {
    return place + 1 + end.size();
  }
  if (!rest.starts_with(end)) return kNowhere;
  const std::size_t after = place + end.size();
  return !is_variable && after < source_.size() && source_[after] == '\n' ? after + 1 : after;
}

void Lexer::skip_comment() {
  for (std::size_t place = at_; place < source_.size(); ++place) {
    const char c = source_[place];
    if (c != '#' && c != '-' && c != '+') continue;
    if (const std::size_t end = end_of_tag(place, "#}"); end != kNowhere) return move_to(end);
  }
  refuse("a comment has no end");
}

bool Lexer::skip_raw_begin(std::size_t after_sign) {
  std::size_t place = skip_spaces(source_, after_sign);
  if (!source_.substr(place).starts_with("raw")) return false;
  place = skip_spaces(source_, place + 3);
  const std::string_view rest = source_.substr(place);
  if (rest.starts_with("-%}")) {
    move_to(skip_spaces(source_, place + 3));
  } else if (rest.starts_with("%}")) {
    move_to(place + 2);
  } else {
    return false;
  }
  return true;
}

Token Lexer::raw_data() {
  for (std::size_t tag = source_.find("{%", at_); tag != kNowhere;
       tag = source_.find("{%", tag + 1)) {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::size_t place = skip_spaces(source_, tag + (sign == '-' || sign == '+' ? 3 : 2));
    if (!source_.substr(place).starts_with("endraw")) continue;
    place = skip_spaces(source_, place + 6);
    const std::size_t end = end_of_tag(place, "%}");
    if (end == kNowhere) continue;
    Token token;
    token.kind = TokenKind::kData;
    token.line = line_;
    token.text = data_before(tag, sign);
    move_to(end);
    return token;
  }
  refuse("raw has no endraw");
}

bool Lexer::tag_ends(Token& token) {
  if (!open_.empty()) return false;
  const bool is_variable = state_ == State::kVariable;
  const std::size_t end = end_of_tag(at_, is_variable ? "}}" : "%}");
  if (end == kNowhere) return false;
  token.kind = is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd;
  token.line = line_;
  move_to(end);
  state_ = State::kOutside;
  return true;
}

Token Lexer::inside() {
  move_to(skip_spaces(source_, at_));
  Token token;
  token.line = line_;
  if (at_ >= source_.size()) refuse("a tag has no end");
  if (tag_ends(token)) return token;
  const char c = source_[at_];
  if (is_ascii_digit(c)) return number();
  if (c == '"' || c == '\'') return string();
  if (is_name_byte(c)) {
    std::size_t end = at_;
    while (end < source_.size() && is_name_byte(source_[end])) ++end;
    token.kind = TokenKind::kName;
    token.text = source_.substr(at_, end - at_);
    move_to(end);
    return token;
  }
  return operator_token();
}

Token Lexer::number() {
  Token token;
  token.line = line_;
  token.kind = TokenKind::kInteger;
  std::size_t end = at_;
  const char second = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
  const int base = source_[at_] != '0'
                       ? 10
                       : (second == 'x' ? 16 : (second == 'o' ? 8 : (second == 'b' ? 2 : 10)));
  if (base != 10) {
    std::size_t first = at_ + 2;
    if (first < source_.size() && source_[first] == '_') ++first;
    end = end_of_digits(source_, first, base);
    if (end > first) {
      token.text = source_.substr(at_, end - at_);
      move_to(end);
      return token;
    }
  }
  end = end_of_digits(source_, at_, 10);
  // A fraction, an exponent or both; not after a dot, where `a.1.2` are two items.
  const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
  std::size_t number_end = end;
  if (!after_dot) {
    if (number_end + 1 < source_.size() && source_[number_end] == '.' &&
        is_ascii_digit(source_[number_end + 1])) {
      number_end = end_of_digits(source_, number_end + 1, 10);
    }
    if (number_end < source_.size() && (source_[number_end] | 0x20) == 'e') {
      std::size_t first = number_end + 1;
      if (first < source_.size() && (source_[first] == '+' || source_[first] == '-')) ++first;
      const std::size_t exponent_end = end_of_digits(source_, first, 10);
      if (exponent_end > first) number_end = exponent_end;
    }
  }
  if (number_end > end) {
    token.kind = TokenKind::kNumber;
    end = number_end;
  } else if (source_[at_] == '0') {
    // Python's 0, or several of them.
    end = at_ + 1;
    while (end < source_.size() &&
           (source_[end] == '0' ||
            (source_[end] == '_' && end + 1 < source_.size() && source_[end + 1] == '0'))) {
      ++end;
    }
  }
  token.text = source_.substr(at_, end - at_);
  move_to(end);
  return token;
}

Token Lexer::string() {
  Token token;
  token.kind = TokenKind::kString;
  token.line = line_;
  const char quote = source_[at_];
  std::size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) refuse("a text has no end");
  const std::string_view inner = source_.substr(at_ + 1, end - at_ - 1);
  for (std::size_t i = 0; i < inner.size();) {
    if (inner[i] != '\\') {
      token.string += inner[i++];
      continue;
    }
    const std::size_t taken = read_escape(inner, i + 1, token.string);
    if (taken == kNowhere) refuse("an escape of a text is cut off or beyond Unicode");
    if (taken == 0) {
      token.string += '\\';
      ++i;
    } else {
      i += 1 + taken;
    }
  }
  move_to(end + 1);
  return token;
}

Token Lexer::operator_token() {
  constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
  constexpr std::string_view kOne = "+-/*%~[](){}<>=.:|,;";
  Token token;
  token.kind = TokenKind::kOperator;
  token.line = line_;
  const std::string_view rest = source_.substr(at_);
  const bool is_two = std::ranges::any_of(kTwo, [&](auto two) { return rest.starts_with(two); });
  token.text = rest.substr(0, is_two ? 2 : 1);
  const char c = rest[0];
  if (!is_two && kOne.find(c) == kNowhere) {
    refuse(std::string("unexpected character ") +
           (c > ' ' && c < 0x7F ? std::string("'") + c + "'" : std::string("in a tag")));
  }
  if (c == '(' || c == '[' || c == '{') open_.push_back(c);
  if (c == ')' || c == ']' || c == '}') {
    const char opening = c == ')' ? '(' : (c == ']' ? '[' : '{');
    if (open_.empty() || open_.back() != opening) refuse(std::string("unexpected '") + c + "'");
    open_.pop_back();
  }
  move_to(at_ + token.text.size());
  return token;
}

}  // namespace lintel::jinja
