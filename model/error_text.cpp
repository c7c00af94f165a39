#include "model/error_text.h"

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

}  // namespace lintel
