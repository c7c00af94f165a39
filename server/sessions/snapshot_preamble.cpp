#include "server/sessions/snapshot_preamble.h"

#include <algorithm>
#include <cstring>

#include "server/sessions/snapshot.h"
#include "server/sessions/snapshot_error.h"
#include "server/sessions/snapshot_layout.h"

namespace lintel {
namespace {

constexpr char kMagic[] = "LNTLSNP1";
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr std::size_t kVersionAt = 8, kHeaderBytesAt = 12, kBodyBytesAt = 16, kChecksumAt = 24,
                      kZerosAt = 40;

template <typename T>
void put(T value, std::byte* to) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T get(const std::byte* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(from[i]) << (8 * i);
  return value;
}

}  // namespace

std::array<std::byte, kSnapshotPreambleBytes> SnapshotPreamble::encode() const {
  std::array<std::byte, kSnapshotPreambleBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, kMagicBytes);
  put(version, bytes.data() + kVersionAt);
  put(header_bytes, bytes.data() + kHeaderBytesAt);
  put(body_bytes, bytes.data() + kBodyBytesAt);
  std::copy(checksum.bytes.begin(), checksum.bytes.end(), bytes.begin() + kChecksumAt);
  return bytes;
}

std::optional<SnapshotPreamble> SnapshotPreamble::decode(
    std::span<const std::byte, kSnapshotPreambleBytes> bytes) {
  const bool zeros = std::all_of(bytes.begin() + kZerosAt, bytes.end(),
                                 [](std::byte byte) { return byte == std::byte{0}; });
  if (std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0 || !zeros) return std::nullopt;
  SnapshotPreamble preamble;
  preamble.version = get<std::uint32_t>(bytes.data() + kVersionAt);
  preamble.header_bytes = get<std::uint32_t>(bytes.data() + kHeaderBytesAt);
  preamble.body_bytes = get<std::uint64_t>(bytes.data() + kBodyBytesAt);
  std::copy_n(bytes.begin() + kChecksumAt, preamble.checksum.bytes.size(),
              preamble.checksum.bytes.begin());
  return preamble;
}

SnapshotPreamble read_snapshot_preamble(std::span<const std::byte> bytes) {
  using Kind = SnapshotError::Kind;
  if (bytes.size() < kSnapshotPreambleBytes) {
    throw SnapshotError(Kind::kDamaged, "found " + std::to_string(bytes.size()) +
                                            " bytes, expected at least " +
                                            std::to_string(kSnapshotPreambleBytes));
  }
  const auto preamble = SnapshotPreamble::decode(bytes.first<kSnapshotPreambleBytes>());
  if (!preamble) throw SnapshotError(Kind::kInvalid, "preamble: these bytes are no snapshot");
  if (preamble->version != kSnapshotVersion) {
    throw SnapshotError(Kind::kInvalid, "version: found " + std::to_string(preamble->version) +
                                            ", expected " + std::to_string(kSnapshotVersion));
  }
  if (preamble->header_bytes == 0 || preamble->header_bytes > kMostSnapshotHeaderBytes ||
      preamble->header_bytes % kSnapshotAlignment != 0) {
    throw SnapshotError(Kind::kInvalid, "header_bytes: found " +
                                            std::to_string(preamble->header_bytes) +
                                            ", expected a multiple of 64 up to 65536");
  }
  constexpr std::uint64_t kMostBodyBytes = std::uint64_t{1} << 62;
  if (preamble->body_bytes > kMostBodyBytes || preamble->body_bytes % kSnapshotAlignment != 0) {
    throw SnapshotError(Kind::kInvalid, "body_bytes: found " +
                                            std::to_string(preamble->body_bytes) +
                                            ", expected a multiple of 64 up to 2^62");
  }
  return *preamble;
}

void check_snapshot_bytes(const SnapshotPreamble& preamble, std::uint64_t found) {
  if (found == preamble.total_bytes()) return;
  throw SnapshotError(SnapshotError::Kind::kDamaged, "found " + std::to_string(found) +
                                                         " bytes, expected " +
                                                         std::to_string(preamble.total_bytes()));
}

}  // namespace lintel
