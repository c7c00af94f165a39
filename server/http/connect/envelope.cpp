#include "server/http/connect/envelope.h"

#include <absl/strings/escaping.h>

#include <algorithm>

namespace lintel {

std::string envelope(std::uint8_t flags, std::string_view message) {
  std::string out = envelope_head(flags, message.size());
  out += message;
  return out;
}

std::string envelope_head(std::uint8_t flags, std::size_t size) {
  const auto length = static_cast<std::uint32_t>(size);
  std::string out;
  out.reserve(kEnvelopeHead + size);  // the message follows
  out += static_cast<char>(flags);
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>((length >> shift) & 0xff);
  return out;
}

bool open_envelope(std::string_view body, std::string_view* message, std::string* why) {
  if (body.size() < kEnvelopeHead) {
    *why = "the body is shorter than the five bytes before a message";
    return false;
  }
  const auto flags = static_cast<std::uint8_t>(body[0]);
  if ((flags & kCompressed) != 0) {
    *why = "the message is compressed, which is not supported";
    return false;
  }
  if (flags != 0) {
    *why = "the message's flags are " + std::to_string(flags) + ", not 0";
    return false;
  }
  std::size_t size = 0;
  for (std::size_t i = 1; i < kEnvelopeHead; ++i) {
    size = size << 8 | static_cast<std::uint8_t>(body[i]);
  }
  body.remove_prefix(kEnvelopeHead);
  if (size != body.size()) {
    *why = "the message should have " + std::to_string(size) + " bytes, and the body has " +
           std::to_string(body.size()) + " after its length: a request is one message";
    return false;
  }
  *message = body;
  return true;
}

bool decode_base64(std::string_view text, std::string* bytes) {
  bytes->clear();
  while (!text.empty()) {
    // A piece ends after its padding.
    std::size_t end = std::min(text.find('='), text.size());
    while (end < text.size() && text[end] == '=') ++end;
    std::string piece;
    if (end % 4 != 0 || !absl::Base64Unescape({text.data(), end}, &piece)) return false;
    *bytes += piece;
    text.remove_prefix(end);
  }
  return true;
}

}  // namespace lintel
