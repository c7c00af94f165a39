// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include "server/sessions/digest.h"

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

// The least bytes, e.g. of a state, for which wide registers are worth a call.
constexpr std::size_t kWideFrom = 1024;

bool is_wide(std::size_t size) {
  static const bool kRunsHere = digest_avx2_runs_here();
  return size >= kWideFrom && kRunsHere;
}

}  // namespace

Digest extend(const Digest& digest, DigestKind kind, std::span<const std::byte> bytes) {
  // A token of a session has a few bytes: hashing them at once is several times faster.
  std::array<std::byte, 64> together;
  auto to = std::copy(digest.bytes.begin(), digest.bytes.end(), together.begin());
  *to++ = static_cast<std::byte>(kind);
  const auto head = std::span(together).first(digest.bytes.size() + sizeof(kind));
  if (bytes.size() > together.size() - head.size()) return digest_of(head, bytes);
  std::copy(bytes.begin(), bytes.end(), to);
  return digest_of(std::span(together).first(head.size() + bytes.size()));
}

Digest digest_of(std::span<const std::byte> bytes) {
  if (is_wide(bytes.size())) return digest_of({}, bytes);
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest digest_of(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (is_wide(body.size())) {
    Digest digest;
    digest_avx2(head.data(), head.size(), body.data(), body.size(), digest.bytes.data());
    return digest;
  }
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, head.data(), head.size());
  XXH3_128bits_update(&state, body.data(), body.size());
  return canonical(XXH3_128bits_digest(&state));
}

struct RunningDigest::State {
  XXH3_state_t hash;
};

RunningDigest::RunningDigest() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->hash);
}

RunningDigest::~RunningDigest() = default;

void RunningDigest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

Digest RunningDigest::digest() const { return canonical(XXH3_128bits_digest(&state_->hash)); }

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
