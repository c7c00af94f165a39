// SPDX-License-Identifier: Apache-2.0
#include "server/observability/request_id.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>

namespace lintel {
namespace {

constexpr std::size_t kMaxIdBytes = 128;

bool is_id_character(char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; }

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

// Ids have to differ, not to be secret.
std::uint64_t random_bits() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

}  // namespace

std::string request_id_from(std::string_view given) {
  if (!given.empty() && given.size() <= kMaxIdBytes &&
      std::all_of(given.begin(), given.end(), &is_id_character)) {
    return std::string(given);
  }
  char id[33];
  std::snprintf(id, sizeof(id), "%016llx%016llx", static_cast<unsigned long long>(random_bits()),
                static_cast<unsigned long long>(random_bits()));
  return id;
}

TraceParent parse_traceparent(std::string_view text) {
  // version "-" trace-id "-" parent-id "-" flags; later versions may continue after another "-".
  constexpr std::size_t kLength = 55;
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const std::string_view version = text.substr(0, 2);
  const std::string_view trace = text.substr(3, 32);
  const std::string_view parent = text.substr(36, 16);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(text.substr(53, 2))) {
    return {};
  }
  if (version == "ff" || is_zero(trace) || is_zero(parent)) return {};
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return {};
  return {std::string(trace), std::string(parent)};
}

}  // namespace lintel
