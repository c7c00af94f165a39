#include "server/web/forms/bounded_json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace lintel {
namespace {

struct BeyondBounds : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace

std::optional<nlohmann::json> parse_object(const std::string& body, std::string& why,
                                           const JsonBounds& bounds) {
  using Event = nlohmann::json::parse_event_t;
  std::size_t values = 0, containers = 0;
  const auto count = [&](int depth, Event event, const nlohmann::json&) {
    if (depth > bounds.max_depth) throw BeyondBounds("is nested too deeply");
    if (event == Event::value && ++values > bounds.max_values) {
      throw BeyondBounds("has too many values");
    }
    const bool opens =
        event == Event::object_start || event == Event::array_start || event == Event::key;
    if (opens && ++containers > bounds.max_containers) {
      throw BeyondBounds("has too many names, objects and arrays");
    }
    return true;
  };
  try {
    nlohmann::json parsed = nlohmann::json::parse(body, count);
    if (parsed.is_object()) return parsed;
    why = "the body is not a JSON object";
  } catch (const nlohmann::json::parse_error& error) {
    why = "the body is not JSON: an error at byte " + std::to_string(error.byte);
  } catch (const nlohmann::json::exception&) {  // a number that no double holds
    why = "the body is not JSON: a number is out of range";
  } catch (const BeyondBounds& error) {
    why = std::string("the body ") + error.what();
  }
  return std::nullopt;
}

nlohmann::ordered_json short_number(float value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  const auto written = std::to_chars(text, text + sizeof text - 1, value);
  *written.ptr = '\0';
  return std::strtod(text, nullptr);
}

}  // namespace lintel
