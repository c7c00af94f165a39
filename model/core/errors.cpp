// SPDX-License-Identifier: Apache-2.0
#include "model/core/errors.h"

#include <nlohmann/json.hpp>

namespace lintel {

std::string shorten(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string whole_number_text(std::int64_t low, std::int64_t high) {
  return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
}

std::string quote(std::string_view text) {
  using nlohmann::json;
  return json(shorten(text)).dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

namespace {

// Bytes of the character that a text begins with; 0: it begins with none that a terminal only
// prints: a control character (Unicode's C0, DEL, C1) or what is not UTF-8.
std::size_t printed_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t size = first >= 0xf0 ? 4 : (first >= 0xe0 ? 3 : 2);
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  const unsigned char second = byte(1);
  const bool is_control = first == 0xc2 && second < 0xa0;
  const bool is_too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return is_control || is_too_long || is_beyond ? 0 : size;
}

}  // namespace

std::string one_line(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  line.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t printed = printed_bytes(text.substr(i));
    if (printed > 0) {
      line.append(text, i, printed);
      i += printed;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[i++]);
    if (byte == '\n') {
      line += "\\n";
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line;
}

}  // namespace lintel
