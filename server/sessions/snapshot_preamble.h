// SnapshotPreamble: the first 64 bytes of a snapshot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/sessions/digest.h"

namespace lintel {

inline constexpr std::size_t kSnapshotPreambleBytes = 64;
inline constexpr std::uint32_t kSnapshotVersion = 1;

// Little-endian on the wire: "LNTLSNP1", version, header_bytes, body_bytes, checksum, zeros.
struct SnapshotPreamble {
  std::uint32_t version = kSnapshotVersion;
  std::uint32_t header_bytes = 0;
  std::uint64_t body_bytes = 0;  // of the sections, with what lies between them
  Digest checksum;               // of header and body

  std::array<std::byte, kSnapshotPreambleBytes> encode() const;
  // Nothing where the bytes are no preamble at all; another version is the caller's to refuse.
  static std::optional<SnapshotPreamble> decode(
      std::span<const std::byte, kSnapshotPreambleBytes> bytes);

  // Of the whole snapshot. REQUIRES: read_snapshot_preamble took it, so that nothing overflows.
  std::uint64_t total_bytes() const { return kSnapshotPreambleBytes + header_bytes + body_bytes; }
};

// The first bytes of what comes, at least as many. Throws SnapshotError for fewer, for what is no
// snapshot, for another version, and for sizes that no snapshot has.
SnapshotPreamble read_snapshot_preamble(std::span<const std::byte> bytes);
// Throws SnapshotError where it has not as many bytes as it says.
void check_snapshot_bytes(const SnapshotPreamble& preamble, std::uint64_t found);

}  // namespace lintel
