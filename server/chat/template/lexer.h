// SPDX-License-Identifier: Apache-2.0
// Lexer: the source of a template as tokens, with jinja2's rules for white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lintel::jinja {

enum class TokenKind : std::uint8_t {
  kData,  // text outside of tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInteger,
  kNumber,
  kString,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::size_t line = 1;
  std::string_view text;  // of the source: data, name, number, operator
  std::string string;     // of kString, without escapes
};

// Replaces CRLF and CR by LF, and drops one LF at the very end.
std::string with_unix_lines(std::string_view source);

// Refers to a source of with_unix_lines, which outlives it.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  // Throws TemplateError of kind kSyntax. After the last token kEnd, again and again.
  Token next();

 private:
  enum class State : std::uint8_t { kOutside, kVariable, kBlock };

  [[noreturn]] void refuse(const std::string& what) const;
  void move_to(std::size_t place);
  bool outside(Token& token);  // false: nothing yet
  std::string_view data_before(std::size_t tag, char sign) const;
  void skip_comment();
  bool skip_raw_begin(std::size_t after_sign);
  Token raw_data();
  std::size_t end_of_tag(std::size_t place, std::string_view end) const;  // npos: no end here
  bool tag_ends(Token& token);
  Token inside();
  Token number();
  Token string();
  Token operator_token();

  std::string_view source_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  State state_ = State::kOutside;
  std::vector<char> open_;  // brackets
};

}  // namespace lintel::jinja
