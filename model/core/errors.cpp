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

std::string quote(std::string_view text) {
  using nlohmann::json;
  return json(shorten(text)).dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string one_line(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line.push_back(c);
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line;
}

}  // namespace lintel
