// What people write after flags, parsed. Every function throws UsageError naming the flag and what
// is wrong with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel::cli {

// A whole number, or a finite decimal one, and nothing after it. `flag` is for the message.
std::int32_t parse_int32(std::string_view flag, std::string_view text);
std::int64_t parse_int64(std::string_view flag, std::string_view text);
std::uint32_t parse_uint32(std::string_view flag, std::string_view text);
std::uint64_t parse_uint64(std::string_view flag, std::string_view text);
float parse_float(std::string_view flag, std::string_view text);
double parse_double(std::string_view flag, std::string_view text);

// "0,0,12"
std::vector<std::int32_t> parse_ids(std::string_view flag, std::string_view text);

// "0-9" or "3,5,8" or both, "0-3,7": in the order written. Each must be below `count`.
std::vector<std::int64_t> parse_indices(std::string_view flag, std::string_view text,
                                        std::int64_t count);

// "12=-1.5"
std::pair<std::int32_t, float> parse_bias(std::string_view flag, std::string_view text);

struct GivenValues {
  std::int64_t position = 0;
  std::vector<std::int32_t> tokens;
};
// "392=0,0,255": the values from position 392 on
GivenValues parse_given(std::string_view flag, std::string_view text);

// "90s", "30m", "72h" or "30d"; more than 0, at most a hundred years.
std::chrono::seconds parse_duration(std::string_view flag, std::string_view text);

// The escapes \n \r \t \0 \\ \xHH; any other backslash is an error.
std::string unescape(std::string_view flag, std::string_view text);

}  // namespace lintel::cli
