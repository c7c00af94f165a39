// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes as a snapshot.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "server/sessions/snapshot.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  lintel::fuzz::within_time(lintel::fuzz::try_snapshot, bytes);
  // Every mutation breaks the checksum. Once more with the right one, so that what lies after it
  // is reached.
  if (size < lintel::kSnapshotPreambleBytes) return 0;
  const auto all = std::as_bytes(std::span(bytes));
  auto preamble = lintel::SnapshotPreamble::decode(all.first<lintel::kSnapshotPreambleBytes>());
  if (!preamble) return 0;
  preamble->checksum = lintel::digest_of(all.subspan(lintel::kSnapshotPreambleBytes));
  std::string repaired(bytes);
  const auto front = preamble->encode();
  std::transform(front.begin(), front.end(), repaired.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  lintel::fuzz::within_time(lintel::fuzz::try_snapshot, repaired);
  return 0;
}
