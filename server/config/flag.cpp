#include "server/config/flag.h"

#include <algorithm>

#include "tools/describe/suggest.h"

namespace lintel {
namespace {

// "2GiB - 1" of what is one byte less.
std::string bytes_bound(std::int64_t bytes) {
  const auto n = static_cast<std::uint64_t>(bytes);
  return n % 1024 == 1023 ? format_bytes(n + 1) + " - 1" : format_bytes(n);
}

std::string bytes_range(std::int64_t low, std::int64_t high) {
  return bytes_bound(low) + " to " + bytes_bound(high);
}

}  // namespace

std::int64_t parse_bytes_between(const std::string& text, std::int64_t low, std::int64_t high,
                                 const std::string& refusal) {
  const auto bytes = static_cast<std::int64_t>(parse_bytes(text));
  if (bytes >= low && bytes <= high) return bytes;
  if (!refusal.empty()) throw UsageError(refusal);
  throw UsageError("'" + text + "' is not from " + bytes_range(low, high));
}

std::chrono::milliseconds parse_duration_from(const std::string& text,
                                              std::chrono::milliseconds low, bool whole_seconds) {
  const std::chrono::milliseconds parsed = parse_duration(text);
  if (parsed < low || (whole_seconds && parsed.count() % 1000 != 0)) {
    throw UsageError("'" + text + "' is not at least " + format_duration(low) +
                     (whole_seconds ? " and whole seconds" : ""));
  }
  return parsed;
}

std::size_t index_of_word(const std::string& word, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string list;
  for (const std::string& known : words) list += (list.empty() ? "" : ", ") + known;
  throw UsageError("'" + word + "' is not one of: " + list + describe::did_you_mean(word, words));
}

std::string Flag::range() const {
  switch (type) {
    case Type::kNumber:
      return std::to_string(low) + " to " + std::to_string(high);
    case Type::kBytes:
      if (high != kMostBytes) return bytes_range(low, high);
      return low == 0 ? "" : bytes_bound(low) + " on";
    case Type::kDuration:
      return low == 0 ? "" : format_duration(std::chrono::milliseconds(low)) + " on";
    default:
      return "";
  }
}

}  // namespace lintel
