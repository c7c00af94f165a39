// SPDX-License-Identifier: Apache-2.0
// Literals of JSON and Python, a byte at a time, as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lintel {

// Appends `text` as it stands within a string of JSON: quotes, backslashes and controls escaped.
void append_escaped(std::string_view text, std::string& json);

// A number in JSON's form.
class JsonNumber {
 public:
  // False: the number does not continue with this byte.
  bool step(char byte);
  // True if the bytes so far are a number; true if it has neither fraction nor exponent.
  bool complete() const { return integer() || at_ == At::kFraction || at_ == At::kExponent; }
  bool integer() const { return at_ == At::kZero || at_ == At::kInteger; }

 private:
  enum class At { kBegin, kMinus, kZero, kInteger, kPoint, kFraction, kE, kSign, kExponent };

  At at_ = At::kBegin;
};

// True if a text is a number in JSON's form, without fraction and exponent if `integer`.
bool is_json_number(std::string_view text, bool integer);

// A JSON object or array from its opening bracket to its partner. Strings and nesting are followed,
// nothing else is looked at.
class JsonSpan {
 public:
  // Appends the byte, a bare control in a string escaped. True: this was the last one.
  bool step(char byte, std::string& json);

 private:
  std::uint64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

// A string after its opening quote. An escape that is none of \n \t \r \b \f \0 \\ \' \" \/ \xHH
// \uHHHH \UHHHHHHHH stays as it is; surrogates are joined, a lone one is U+FFFD.
class QuotedText {
 public:
  explicit QuotedText(char quote = '"') : quote_(quote) {}
  // Appends the characters that are decided. True: this was the closing quote.
  bool step(char byte, std::string& text);

 private:
  void add(std::uint32_t code_point, std::string& text);
  void flush_surrogate(std::string& text);

  char quote_;
  std::string escape_;      // with its backslash, while it is not complete
  std::size_t digits_ = 0;  // that `escape_` needs after its letter
  std::uint32_t high_surrogate_ = 0;
};

// A name of a function or parameter: at most kMaxNameCharacters, none of them white space or one of
// <>"'=(){}[],
class NameText {
 public:
  // False: with this byte it is no name.
  bool step(char byte);
  const std::string& text() const { return text_; }
  bool empty() const { return text_.empty(); }
  void clear();

 private:
  std::string text_;
  std::size_t characters_ = 0;
};

// A literal of Python or JSON, written as JSON: texts, numbers, True False None true false null,
// lists, tuples, mappings with text keys, a comma at the end, at most 32 levels. The output is at
// most kMaxHeldBytes and a part of a text more.
class LiteralReader {
 public:
  enum class Progress {
    kMore,
    kEnd,        // the literal ends with this byte
    kEndBefore,  // it ended before this byte
    kFailed,
  };
  // Appends to `json`, which holds nothing else.
  Progress step(char byte, std::string& json);

 private:
  enum class State { kValue, kText, kNumber, kWord, kAfterValue, kKey, kKeyText, kColon };

  static constexpr int kMaxDepth = 32;
  static constexpr std::size_t kMaxWordBytes = 1'024;  // of numbers, too

  Progress begin_value(char byte, std::string& json);
  Progress after_value(char byte, std::string& json);
  Progress step_text(char byte, std::string& json);
  Progress end_container(std::string& json);
  Progress end_word(std::string& json);

  State state_ = State::kValue;
  char closing_[kMaxDepth] = {};  // brackets that are awaited
  int depth_ = 0;
  bool after_comma_ = false;  // which has not been written
  QuotedText quoted_;
  JsonNumber number_;
  std::string piece_;  // a part of a text, or a number or word so far
};

}  // namespace lintel
