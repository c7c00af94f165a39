// SPDX-License-Identifier: Apache-2.0
// Utf8Stream: bytes as they come, as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lintel {

// UTF-8 that arrives in pieces, cut anywhere, as whole characters. What can no longer become one is
// one U+FFFD for each maximal beginning of a character (Unicode 15, section 3.9, "U+FFFD
// Substitution of Maximal Subparts"), as WHATWG's decoder and Python have it; two bytes of a
// surrogate wait for the third, as in Python's incremental decoder. At most 3 bytes wait. Used by
// one thread at a time.
class Utf8Stream {
 public:
  // Appends to `text` the characters that end within `bytes`.
  void push(std::string_view bytes, std::string& text);
  // The stream ends: a character that is not complete becomes U+FFFD. Then another may begin.
  void finish(std::string& text);

  // Characters of the text so far.
  std::size_t num_characters() const { return num_characters_; }
  // True if bytes of an incomplete character are held back.
  bool holds_back() const { return num_waiting_ > 0; }

 private:
  void begin(unsigned char byte, std::string& text);
  void replace(std::string& text);
  bool holds_surrogate() const;

  char waiting_[4] = {};
  std::size_t num_waiting_ = 0;
  std::size_t length_ = 0;     // of the character that waits
  unsigned char low_ = 0x80;   // the least and the largest byte
  unsigned char high_ = 0xBF;  // the highest byte that may come next
  std::size_t num_characters_ = 0;
};

}  // namespace lintel
