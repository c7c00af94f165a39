// JSON of a stranger, parsed within bounds.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lintel {

// Two bytes of JSON can become a hundred in memory: these bound what a body may become. They are
// far beyond what honest requests have; the largest of those has a million token ids.
struct JsonBounds {
  int max_depth = 8;
  std::size_t max_values = 1'100'000;  // numbers, texts, true, false, null
  std::size_t max_containers = 4096;   // objects and arrays, and the names in them
};

// The object that `body` is. Nothing: it is none, or beyond the bounds; `why` says what is wrong.
std::optional<nlohmann::json> parse_object(const std::string& body, std::string& why,
                                           const JsonBounds& bounds = {});

// As text, with what is not UTF-8 in it replaced.
template <typename Json>
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The shortest decimal that is read as this float; null where JSON has no number for it.
nlohmann::ordered_json short_number(float value);

}  // namespace lintel
