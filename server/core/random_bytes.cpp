// SPDX-License-Identifier: Apache-2.0
#include "server/core/random_bytes.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

namespace lintel {

void fill_with_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "getrandom");
    }
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

namespace {

constexpr std::size_t kMostCharacters = 64;

// Uses the ASCII table: a locale may accept letters that a header cannot have.
bool may_be_in_replica_id(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

bool is_replica_id(std::string_view text) {
  return !text.empty() && text.size() <= kMostCharacters &&
         std::ranges::all_of(text, may_be_in_replica_id);
}

std::string default_replica_id() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "lintel";
  std::string id = std::string(name.data()).substr(0, kMostCharacters);
  std::ranges::replace_if(
      id, [](char c) { return !may_be_in_replica_id(c); }, '-');
  return id.empty() ? "lintel" : id;
}

}  // namespace lintel
