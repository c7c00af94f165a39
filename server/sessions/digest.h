// SPDX-License-Identifier: Apache-2.0
// Digest: a hash that distinguishes histories of a session.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lintel {

// XXH3-128, canonical (big-endian). Not cryptographic: it detects accidents, and a client that
// forges a history only harms its own session.
struct Digest {
  std::array<std::byte, 16> bytes{};

  auto operator<=>(const Digest&) const = default;
};

// The kind of a record of a chain; part of the hash, so that no record equals one of another kind.
enum class DigestKind : std::uint8_t { kBegin, kValues, kEnd, kRewind };

// d' = XXH3-128(d, kind, bytes).
Digest extend(const Digest& digest, DigestKind kind, std::span<const std::byte> bytes);
// The digest of bytes alone; two pieces are hashed as their concatenation.
Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::span<const std::byte> head, std::span<const std::byte> body);

// digest_of() of bytes that come in pieces; digest() may be called after any of them.
class RunningDigest {
 public:
  RunningDigest();
  ~RunningDigest();
  RunningDigest(const RunningDigest&) = delete;
  RunningDigest& operator=(const RunningDigest&) = delete;

  void add(std::span<const std::byte> bytes);
  Digest digest() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

std::string to_hex(const Digest& digest);  // 32 characters

// XXH3-128 in registers of 32 bytes, for machines that have them.

// The digest of `head` and then `body`, canonical. The same bits as digest_of() everywhere, more
// than twice as fast. REQUIRES: digest_avx2_runs_here().
void digest_avx2(const void* head, std::size_t head_bytes, const void* body, std::size_t body_bytes,
                 void* digest_of_16_bytes);
bool digest_avx2_runs_here();

}  // namespace lintel
