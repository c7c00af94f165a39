// JSON out.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lintel::cli {

// Writes one JSON value, compactly, on one line. Numbers read back exactly: floats have the fewest
// digits that give the same float again (as float, not as double), and always a point or an
// exponent. NaN and infinities, which JSON has not, become null.
//
// REQUIRES: calls in an order that makes sense; nothing is checked.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(float number);
  JsonWriter& value(double number);
  JsonWriter& value(bool truth) { return literal(truth ? "true" : "false"); }
  JsonWriter& value(std::integral auto number) { return literal(std::to_string(number)); }
  // Bytes that are no UTF-8 become U+FFFD.
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& null() { return literal("null"); }
  JsonWriter& raw(std::string_view json) { return literal(json); }  // a finished JSON value

  template <typename T>
  JsonWriter& field(std::string_view name, T&& what) {
    return key(name).value(std::forward<T>(what));
  }

  std::string take() { return std::move(text_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& literal(std::string_view text);
  void separate();

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace lintel::cli
