// SnapshotReader: a snapshot that comes in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/sessions/snapshot.h"
#include "server/sessions/snapshot_preamble.h"

namespace lintel {

// Gathers pieces, which may be a stranger's. What is wrong with the preamble, or more bytes than
// are allowed or said, is refused with the piece that shows it. Holds at most twice what came, and
// zeroes it. One thread at a time.
class SnapshotReader {
 public:
  // most_bytes: of the whole snapshot; what its session may take, with kMostSnapshotHeaderBytes.
  explicit SnapshotReader(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  ~SnapshotReader();
  SnapshotReader(const SnapshotReader&) = delete;
  SnapshotReader& operator=(const SnapshotReader&) = delete;

  // Throws SnapshotError; the reader is of no more use then.
  void add(std::span<const std::byte> piece);
  // Once all pieces were added. As view_snapshot: the state stays here, as long as this lives.
  SnapshotOf view() const;
  // The same, as read_snapshot; zeroes the bytes.
  SnapshotOf finish();

  std::uint64_t bytes() const { return bytes_.size(); }  // that came
  // Of the snapshot; nothing before its preamble came.
  std::optional<std::uint64_t> total_bytes() const;

 private:
  void grow(std::size_t needed);

  const std::uint64_t most_bytes_;
  std::optional<SnapshotPreamble> preamble_;
  std::vector<std::byte> bytes_;
};

}  // namespace lintel
