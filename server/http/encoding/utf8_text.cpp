// SPDX-License-Identifier: Apache-2.0
#include "server/http/encoding/utf8_text.h"

namespace lintel {

void Utf8Text::add(std::string_view bytes, std::string& text) {
  for (const char byte : bytes) add(static_cast<unsigned char>(byte), text);
}

void Utf8Text::end(std::string& text) {
  if (missing_ > 0) replace(text);
}

void Utf8Text::add(unsigned char byte, std::string& text) {
  if (missing_ > 0 && (byte < lowest_ || byte > highest_)) replace(text);  // a new character begins
  if (missing_ > 0) {
    begun_.push_back(static_cast<char>(byte));
    lowest_ = 0x80;
    highest_ = 0xbf;
    if (--missing_ > 0) return;
    text += begun_;
    begun_.clear();
    ++num_characters_;
    return;
  }
  if (byte < 0x80) {
    text.push_back(static_cast<char>(byte));
    ++num_characters_;
    return;
  }
  // Table 3-7, "Well-Formed UTF-8 Byte Sequences": the second byte of some is narrower.
  missing_ = byte >= 0xc2 && byte <= 0xdf   ? 1
             : byte >= 0xe0 && byte <= 0xef ? 2
             : byte >= 0xf0 && byte <= 0xf4 ? 3
                                            : 0;
  lowest_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  highest_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
  if (missing_ == 0) {
    replace(text);
  } else {
    begun_.push_back(static_cast<char>(byte));
  }
}

void Utf8Text::replace(std::string& text) {
  text += "\xef\xbf\xbd";
  ++num_characters_;
  begun_.clear();
  missing_ = 0;
}

}  // namespace lintel
