// SPDX-License-Identifier: Apache-2.0
// Unicode for tokenizers: UTF-8 read with errors, four classes of code points, NFC.
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

// The class in Unicode 16, as in the library that most tokenizer.json files are written by.
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

}  // namespace lintel
