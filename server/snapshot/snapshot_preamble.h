// SnapshotPreamble: the first 64 bytes of a snapshot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "server/history/digest.h"

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
};

}  // namespace lintel
