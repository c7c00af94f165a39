#include "client/cli/flag_values.h"

#include <charconv>
#include <cmath>
#include <type_traits>

#include "client/cli/console.h"

namespace lintel::cli {
namespace {

[[noreturn]] void refuse(std::string_view flag, std::string_view text, const std::string& why) {
  throw UsageError(std::string(flag) + " '" + std::string(text) + "': " + why);
}

template <typename Number>
Number parse_number(std::string_view flag, std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) refuse(flag, text, "out of range");
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(flag, text,
           std::is_floating_point_v<Number> ? "expected a number"
           : std::is_unsigned_v<Number>     ? "expected a whole number, 0 or more"
                                            : "expected a whole number");
  }
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) refuse(flag, text, "expected a finite number");
  }
  return number;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::pair<std::string_view, std::string_view> split_pair(std::string_view flag,
                                                         std::string_view text,
                                                         const std::string& form) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) refuse(flag, text, "expected " + form);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::int32_t parse_int32(std::string_view flag, std::string_view text) {
  return parse_number<std::int32_t>(flag, text);
}
std::int64_t parse_int64(std::string_view flag, std::string_view text) {
  return parse_number<std::int64_t>(flag, text);
}
std::uint32_t parse_uint32(std::string_view flag, std::string_view text) {
  return parse_number<std::uint32_t>(flag, text);
}
std::uint64_t parse_uint64(std::string_view flag, std::string_view text) {
  return parse_number<std::uint64_t>(flag, text);
}
float parse_float(std::string_view flag, std::string_view text) {
  return parse_number<float>(flag, text);
}
double parse_double(std::string_view flag, std::string_view text) {
  return parse_number<double>(flag, text);
}

std::vector<std::int32_t> parse_ids(std::string_view flag, std::string_view text) {
  std::vector<std::int32_t> ids;
  if (text.empty()) return ids;
  for (const std::string_view part : split(text, ',')) ids.push_back(parse_int32(flag, part));
  return ids;
}

std::vector<std::int64_t> parse_indices(std::string_view flag, std::string_view text,
                                        std::int64_t count) {
  std::vector<std::int64_t> indices;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse_number<std::uint32_t>(flag, part.substr(0, dash));
    const auto last = dash == std::string_view::npos
                          ? first
                          : parse_number<std::uint32_t>(flag, part.substr(dash + 1));
    if (last < first) refuse(flag, text, "the range " + std::string(part) + " runs backwards");
    if (last >= count) {
      refuse(flag, text,
             std::to_string(last) + " is past the last image, " + std::to_string(count - 1));
    }
    for (std::int64_t i = first; i <= last; ++i) indices.push_back(i);
  }
  return indices;
}

std::pair<std::int32_t, float> parse_bias(std::string_view flag, std::string_view text) {
  const auto [id, value] = split_pair(flag, text, "ID=VALUE");
  return {parse_int32(flag, id), parse_float(flag, value)};
}

GivenValues parse_given(std::string_view flag, std::string_view text) {
  const auto [position, values] = split_pair(flag, text, "POSITION=ID,ID,...");
  return {parse_int64(flag, position), parse_ids(flag, values)};
}

std::chrono::seconds parse_duration(std::string_view flag, std::string_view text) {
  static constexpr std::pair<char, std::int64_t> kUnits[] = {
      {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}};
  constexpr std::int64_t kLongest = std::int64_t{100} * 365 * 24 * 3600;
  for (const auto& [unit, seconds] : kUnits) {
    if (text.empty() || text.back() != unit) continue;
    const std::string_view digits = text.substr(0, text.size() - 1);
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc() || end != digits.data() + digits.size()) break;
    if (count < 1 || count > kLongest / seconds) break;
    return std::chrono::seconds(count * seconds);
  }
  refuse(flag, text, "expected a time like 90s, 30m, 72h or 30d");
}

std::string unescape(std::string_view flag, std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      bytes += text[i];
      continue;
    }
    const char kind = i + 1 < text.size() ? text[i + 1] : '\0';
    const char* const known = "nrt0\\";
    const char* const meant = "\n\r\t\0\\";
    std::size_t k = 0;
    while (k < 5 && known[k] != kind) ++k;
    if (k < 5 && i + 1 < text.size()) {
      bytes += meant[k];
      i += 1;
    } else if (kind == 'x' && i + 3 < text.size() && hex_digit(text[i + 2]) >= 0 &&
               hex_digit(text[i + 3]) >= 0) {
      bytes += static_cast<char>(hex_digit(text[i + 2]) * 16 + hex_digit(text[i + 3]));
      i += 3;
    } else {
      refuse(flag, text, "expected \\n, \\r, \\t, \\0, \\\\ or \\xHH after the backslash");
    }
  }
  return bytes;
}

}  // namespace lintel::cli
