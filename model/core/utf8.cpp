// SPDX-License-Identifier: Apache-2.0
#include "model/core/utf8.h"

namespace lintel {
namespace {

constexpr char kSurrogateLead = '\xED';

}  // namespace

bool Utf8Stream::holds_surrogate() const {
  return num_waiting_ == 2 && waiting_[0] == kSurrogateLead &&
         static_cast<unsigned char>(waiting_[1]) >= 0xA0;
}

void Utf8Stream::begin(unsigned char byte, std::string& text) {
  if (byte < 0x80) {
    text += static_cast<char>(byte);
    ++num_characters_;
    return;
  }
  if (byte < 0xC2 || byte > 0xF4) return replace(text);
  length_ = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  waiting_[0] = static_cast<char>(byte);
  num_waiting_ = 1;
}

void Utf8Stream::replace(std::string& text) {
  text += "\xEF\xBF\xBD";
  ++num_characters_;
}

void Utf8Stream::push(std::string_view bytes, std::string& text) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (num_waiting_ == 0) {
      begin(byte, text);
      continue;
    }
    if (holds_surrogate() || byte < low_ || byte > high_) {
      if (num_waiting_ == 1 && waiting_[0] == kSurrogateLead && byte >= 0xA0 && byte <= 0xBF) {
        waiting_[num_waiting_++] = c;
        continue;
      }
      finish(text);
      begin(byte, text);
      continue;
    }
    waiting_[num_waiting_++] = c;
    low_ = 0x80;
    high_ = 0xBF;
    if (num_waiting_ < length_) continue;
    text.append(waiting_, num_waiting_);
    num_waiting_ = 0;
    ++num_characters_;
  }
}

void Utf8Stream::finish(std::string& text) {
  if (num_waiting_ > 0) replace(text);
  if (holds_surrogate()) replace(text);
  num_waiting_ = 0;
}

}  // namespace lintel
