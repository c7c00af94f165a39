// Snapshots: a session as bytes, format 1 of docs/snapshot_format.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/session_image.h"
#include "server/sessions/snapshot_error.h"
#include "server/sessions/snapshot_layout.h"

namespace lintel {

// What a session was computed by.
struct SnapshotAbout {
  std::string model_fingerprint;  // Transformer::fingerprint
  std::string attention;          // that ran, as Model.attention
  std::string weight_type;
  std::string numerics;  // that its last values were computed with; equal ones continue bit for bit
  std::string numerics_text;
  std::int64_t numerics_changed_at = 0;  // values before it were with others; 0: there are none
  std::string lintel_version;            // that wrote it
  std::chrono::system_clock::time_point made;  // to the millisecond
};

struct SnapshotOf : SnapshotAbout {
  SessionImage image;
};

inline constexpr std::size_t kMostSnapshotHeaderBytes = 64 << 10;

// REQUIRES: the image is one that read_snapshot() takes. The caller zeroes the bytes when they are
// done with: they are what the session held.
std::vector<std::byte> write_snapshot(const SnapshotOf& snapshot);

// The same in two steps, for a state that is not copied to become part of it.
class SnapshotDraft {
 public:
  // `image`: without its state, which will have so many bytes.
  SnapshotDraft(const SnapshotAbout& about, const SessionImage& image, std::size_t state_bytes);
  ~SnapshotDraft();  // zeroes what was not finished
  SnapshotDraft(const SnapshotDraft&) = delete;
  SnapshotDraft& operator=(const SnapshotDraft&) = delete;

  // The state is to be appended to this, which has room for it.
  std::vector<std::byte>& bytes() { return bytes_; }
  // `image`: the same as before. The draft is of no more use.
  std::vector<std::byte> finish(const SessionImage& image);

 private:
  std::vector<std::byte> bytes_;
  std::size_t header_bytes_ = 0;
  std::uint32_t value_bytes_ = 1;
  SnapshotLayout layout_;
};

// Of all bytes of one, which may be a stranger's. Throws SnapshotError. What it returns is
// consistent: lengths, order and ranges of everything but the state, which SequenceState::load
// looks at, and the values, of which the caller knows the vocabulary. Takes memory by
// bytes.size().
SnapshotOf read_snapshot(std::span<const std::byte> bytes);
// The same, but the state stays in `bytes`: SessionImage::state_elsewhere.
SnapshotOf view_snapshot(std::span<const std::byte> bytes);

}  // namespace lintel
