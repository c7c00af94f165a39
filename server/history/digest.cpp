#include "server/history/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>

namespace lintel {
namespace {

Digest canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  std::memcpy(digest.bytes.data(), canonical.digest, digest.bytes.size());
  return digest;
}

}  // namespace

Digest extend(const Digest& digest, DigestKind kind, std::span<const std::byte> bytes) {
  // A value of a session is a few bytes: several times faster in one go.
  std::array<std::byte, 64> together;
  const std::size_t size = digest.bytes.size() + sizeof(kind) + bytes.size();
  if (size <= together.size()) {
    auto to = std::copy(digest.bytes.begin(), digest.bytes.end(), together.begin());
    *to++ = static_cast<std::byte>(kind);
    std::copy(bytes.begin(), bytes.end(), to);
    return digest_of(std::span(together).first(size));
  }
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, digest.bytes.data(), digest.bytes.size());
  XXH3_128bits_update(&state, &kind, sizeof(kind));
  XXH3_128bits_update(&state, bytes.data(), bytes.size());
  return canonical(XXH3_128bits_digest(&state));
}

Digest digest_of(std::span<const std::byte> bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string to_hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : digest.bytes) {
    hex.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
    hex.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
  }
  return hex;
}

}  // namespace lintel
