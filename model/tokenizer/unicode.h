// SPDX-License-Identifier: Apache-2.0
// What tokenizers need of Unicode: UTF-8 read with errors, four classes of code points, NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lintel {

// Classes of code points in the patterns that split texts. Each code point has one of them.
enum class CodePointClass : std::uint8_t {
  kOther = 0,
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kMark = 4,    // \p{M}
  kSpace = 8,   // \s
};

// Of Unicode 16, as the library has it that most tokenizer.json files are written by.
CodePointClass class_of(char32_t code_point);

// A character at the beginning of a text.
struct DecodedCharacter {
  static constexpr char32_t kInvalid = 0xFFFFFFFF;
  char32_t code_point;  // kInvalid: of no valid character
  std::size_t bytes;    // 1 where it is invalid
};

// REQUIRES: `text` is not empty.
DecodedCharacter decode_character(std::string_view text);

// REQUIRES: a code point that is no surrogate.
void append_utf8(std::string& text, char32_t code_point);

// NFC of Unicode 9, as the same library has it: it does not move later marks. Bytes that are not
// UTF-8 stay as they are. False: `text` is NFC already, and `normalized` is unchanged.
bool normalize_nfc(std::string_view text, std::string& normalized);

// UTF-8 that arrives in pieces, cut anywhere, as whole characters. What can no longer become one is
// one U+FFFD for each maximal beginning of a character, as WHATWG's decoder and Python have it; two
// bytes of a surrogate wait for the third, as in Python's incremental decoder. At most 3 bytes
// wait. Used by one thread at a time.
class Utf8Stream {
 public:
  // Appends to `text` the characters that end within `bytes`.
  void push(std::string_view bytes, std::string& text);
  // The stream ends: a character that is not complete becomes U+FFFD. Then it is as new.
  void finish(std::string& text);

 private:
  void begin(unsigned char byte, std::string& text);
  bool holds_surrogate() const;

  char waiting_[4] = {};
  std::size_t num_waiting_ = 0;
  std::size_t length_ = 0;     // of the character that waits
  unsigned char low_ = 0x80;   // the least and the largest byte
  unsigned char high_ = 0xBF;  // that may come next
};

}  // namespace lintel
