#include "client/cli/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace lintel::cli {
namespace {

template <typename Float>
std::string shortest(Float number) {
  if (!std::isfinite(number)) return "null";
  std::array<char, 64> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), end);
  // "3" would read back as an integer, and "-0" lose its sign.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

void JsonWriter::separate() {
  if (needs_comma_) text_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::literal(std::string_view text) {
  separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  value(name);
  text_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(float number) { return literal(shortest(number)); }
JsonWriter& JsonWriter::value(double number) { return literal(shortest(number)); }

JsonWriter& JsonWriter::value(std::string_view text) {
  return literal(nlohmann::json(text).dump(/*indent=*/-1, /*indent_char=*/' ',
                                           /*ensure_ascii=*/false,
                                           nlohmann::json::error_handler_t::replace));
}

}  // namespace lintel::cli
