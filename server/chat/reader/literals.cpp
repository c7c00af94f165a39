// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/literals.h"

#include "server/chat/reader/lookahead.h"

namespace lintel {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::uint32_t kReplacement = 0xFFFD;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

// Appends what follows the backslash in the escape of a control character.
void append_control(char c, std::string& json) {
  switch (c) {
    case '\n':
      json += 'n';
      return;
    case '\r':
      json += 'r';
      return;
    case '\t':
      json += 't';
      return;
    case '\b':
      json += 'b';
      return;
    case '\f':
      json += 'f';
      return;
    default:
      json += "u00";
      json += kHexDigits[static_cast<unsigned char>(c) >> 4];
      json += kHexDigits[static_cast<unsigned char>(c) & 15];
  }
}

void append_utf8(std::uint32_t code_point, std::string& text) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 63));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 63));
    add(0x80 | (code_point & 63));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 63));
    add(0x80 | (code_point >> 6 & 63));
    add(0x80 | (code_point & 63));
  }
}

}  // namespace

void append_escaped(std::string_view text, std::string& json) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (is_control(c)) {
      json += '\\';
      append_control(c, json);
    } else {
      json += c;
    }
  }
}

bool JsonNumber::step(char byte) {
  const bool digit = is_digit(byte);
  switch (at_) {
    case At::kBegin:
      if (byte == '-') {
        at_ = At::kMinus;
        return true;
      }
      [[fallthrough]];
    case At::kMinus:
      if (!digit) return false;
      at_ = byte == '0' ? At::kZero : At::kInteger;
      return true;
    case At::kInteger:
      if (digit) return true;
      [[fallthrough]];
    case At::kZero:
      if (byte == '.') {
        at_ = At::kPoint;
        return true;
      }
      [[fallthrough]];
    case At::kFraction:
      if (at_ == At::kFraction && digit) return true;
      if (byte != 'e' && byte != 'E') return false;
      at_ = At::kE;
      return true;
    case At::kPoint:
      if (digit) at_ = At::kFraction;
      return digit;
    case At::kE:
      if (byte == '+' || byte == '-') {
        at_ = At::kSign;
        return true;
      }
      [[fallthrough]];
    case At::kSign:
    case At::kExponent:
      if (digit) at_ = At::kExponent;
      return digit;
  }
  return false;
}

bool is_json_number(std::string_view text, bool integer) {
  JsonNumber number;
  for (const char c : text) {
    if (!number.step(c)) return false;
  }
  return number.complete() && (!integer || number.integer());
}

bool JsonSpan::step(char byte, std::string& json) {
  if (in_string_) {
    if (is_control(byte)) {
      if (!escaped_) json += '\\';
      append_control(byte, json);
    } else {
      json += byte;
      if (byte == '"' && !escaped_) in_string_ = false;
    }
    escaped_ = byte == '\\' && !escaped_;
    return false;
  }
  json += byte;
  if (byte == '"') {
    in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    ++depth_;
  } else if (byte == '}' || byte == ']') {
    return --depth_ == 0;
  }
  return false;
}

void QuotedText::flush_surrogate(std::string& text) {
  if (high_surrogate_ != 0) append_utf8(kReplacement, text);
  high_surrogate_ = 0;
}

void QuotedText::add(std::uint32_t code_point, std::string& text) {
  const bool low = code_point >= 0xDC00 && code_point < 0xE000;
  if (low && high_surrogate_ != 0) {
    append_utf8(0x10000 + ((high_surrogate_ - 0xD800) << 10) + (code_point - 0xDC00), text);
    high_surrogate_ = 0;
    return;
  }
  flush_surrogate(text);
  if (code_point >= 0xD800 && code_point < 0xDC00) {
    high_surrogate_ = code_point;
  } else {
    append_utf8(low || code_point > 0x10FFFF ? kReplacement : code_point, text);
  }
}

bool QuotedText::step(char byte, std::string& text) {
  if (digits_ > 0) {
    if (is_hex_digit(byte)) {
      escape_ += byte;
      if (escape_.size() < 2 + digits_) return false;
      std::uint32_t code_point = 0;
      for (const char digit : std::string_view(escape_).substr(2)) {
        const int low = digit & 15;
        code_point = code_point << 4 | static_cast<std::uint32_t>(is_digit(digit) ? low : low + 9);
      }
      escape_.clear();
      digits_ = 0;
      add(code_point, text);
      return false;
    }
    flush_surrogate(text);
    text += escape_;  // no escape after all
    escape_.clear();
    digits_ = 0;
  } else if (!escape_.empty()) {
    constexpr std::string_view kLetters = "ntrbf0\\'\"/";
    constexpr std::string_view kMeanings("\n\t\r\b\f\0\\'\"/", 10);
    if (byte == 'x' || byte == 'u' || byte == 'U') {
      digits_ = byte == 'x' ? 2 : byte == 'u' ? 4 : 8;
      escape_ += byte;
      return false;
    }
    flush_surrogate(text);
    const std::size_t letter = kLetters.find(byte);
    if (letter == std::string_view::npos) text += '\\';
    text += letter == std::string_view::npos ? byte : kMeanings[letter];
    escape_.clear();
    return false;
  }
  if (byte == '\\') {
    escape_ = '\\';
    return false;
  }
  flush_surrogate(text);
  if (byte == quote_) return true;
  text += byte;
  return false;
}

bool NameText::step(char byte) {
  constexpr std::string_view kRefused = "<>\"'=(){}[],";
  if (is_white_space(byte) || is_control(byte) || kRefused.find(byte) != std::string_view::npos) {
    return false;
  }
  if ((byte & 0xC0) != 0x80) ++characters_;
  text_ += byte;
  return characters_ <= kMaxNameCharacters && text_.size() <= 4 * kMaxNameCharacters;
}

void NameText::clear() {
  text_.clear();
  characters_ = 0;
}

LiteralReader::Progress LiteralReader::end_word(std::string& json) {
  if (state_ == State::kNumber) {
    if (!number_.complete()) return Progress::kFailed;
    json += piece_;
  } else if (piece_ == "True" || piece_ == "true") {
    json += "true";
  } else if (piece_ == "False" || piece_ == "false") {
    json += "false";
  } else if (piece_ == "None" || piece_ == "null") {
    json += "null";
  } else {
    return Progress::kFailed;
  }
  state_ = State::kAfterValue;
  return depth_ == 0 ? Progress::kEndBefore : Progress::kMore;
}

LiteralReader::Progress LiteralReader::end_container(std::string& json) {
  json += closing_[--depth_] == '}' ? '}' : ']';
  after_comma_ = false;
  state_ = State::kAfterValue;
  return depth_ == 0 ? Progress::kEnd : Progress::kMore;
}

LiteralReader::Progress LiteralReader::begin_value(char byte, std::string& json) {
  if (is_white_space(byte)) return Progress::kMore;
  // A list is empty or ends with a comma; a mapping ends at a key.
  if (depth_ > 0 && byte == closing_[depth_ - 1] && byte != '}') return end_container(json);
  if (after_comma_) json += ", ";
  after_comma_ = false;
  if (byte == '"' || byte == '\'') {
    json += '"';
    quoted_ = QuotedText(byte);
    state_ = State::kText;
  } else if (byte == '-' || is_digit(byte)) {
    piece_ = byte;
    number_ = JsonNumber();
    number_.step(byte);
    state_ = State::kNumber;
  } else if (is_letter(byte)) {
    piece_ = byte;
    state_ = State::kWord;
  } else if (byte == '[' || byte == '(' || byte == '{') {
    if (depth_ == kMaxDepth) return Progress::kFailed;
    json += byte == '{' ? '{' : '[';
    closing_[depth_++] = byte == '{' ? '}' : byte == '[' ? ']' : ')';
    state_ = byte == '{' ? State::kKey : State::kValue;
  } else {
    return Progress::kFailed;
  }
  return Progress::kMore;
}

LiteralReader::Progress LiteralReader::after_value(char byte, std::string& json) {
  if (is_white_space(byte)) return Progress::kMore;
  if (byte == closing_[depth_ - 1]) return end_container(json);
  if (byte != ',') return Progress::kFailed;
  after_comma_ = true;
  state_ = closing_[depth_ - 1] == '}' ? State::kKey : State::kValue;
  return Progress::kMore;
}

LiteralReader::Progress LiteralReader::step_text(char byte, std::string& json) {
  piece_.clear();
  const bool ended = quoted_.step(byte, piece_);
  append_escaped(piece_, json);
  if (!ended) return Progress::kMore;
  json += '"';
  const bool key = state_ == State::kKeyText;
  state_ = key ? State::kColon : State::kAfterValue;
  return depth_ == 0 ? Progress::kEnd : Progress::kMore;
}

LiteralReader::Progress LiteralReader::step(char byte, std::string& json) {
  if (json.size() > kMaxHeldBytes) return Progress::kFailed;
  switch (state_) {
    case State::kValue:
      return begin_value(byte, json);
    case State::kText:
    case State::kKeyText:
      return step_text(byte, json);
    case State::kAfterValue:
      return after_value(byte, json);
    case State::kNumber:
    case State::kWord: {
      const bool more = state_ == State::kNumber ? number_.step(byte)
                                                 : is_letter(byte) || is_digit(byte) || byte == '_';
      if (more) {
        piece_ += byte;
        return piece_.size() <= kMaxWordBytes ? Progress::kMore : Progress::kFailed;
      }
      const Progress ended = end_word(json);
      return ended == Progress::kMore ? after_value(byte, json) : ended;
    }
    case State::kKey:
      if (is_white_space(byte)) return Progress::kMore;
      if (byte == '}') return end_container(json);
      if (byte != '"' && byte != '\'') return Progress::kFailed;
      json += after_comma_ ? ", \"" : "\"";
      after_comma_ = false;
      quoted_ = QuotedText(byte);
      state_ = State::kKeyText;
      return Progress::kMore;
    case State::kColon:
      if (is_white_space(byte)) return Progress::kMore;
      if (byte != ':') return Progress::kFailed;
      json += ": ";
      state_ = State::kValue;
      return Progress::kMore;
  }
  return Progress::kFailed;
}

}  // namespace lintel
