// SPDX-License-Identifier: Apache-2.0
// Snapshots: a session as bytes, format 1 of docs/snapshot_format.md.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/sessions/digest.h"
#include "server/sessions/session_history.h"

namespace lintel {

// SnapshotError: why bytes are no snapshot of a session.

class SnapshotError : public std::runtime_error {
 public:
  enum class Kind {
    kDamaged,  // fewer or more bytes than it says, or others: it was one once
    kInvalid,  // whole, but one of its fields cannot be
  };

  // what() begins with "snapshot: " and names the field.
  SnapshotError(Kind kind, const std::string& message)
      : std::runtime_error("snapshot: " + message), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// SnapshotLayout: where the sections of a snapshot lie in its body.

inline constexpr std::size_t kSnapshotAlignment = 64;  // of sections, header and body

constexpr std::uint64_t snapshot_padded(std::uint64_t bytes) {
  return (bytes + kSnapshotAlignment - 1) / kSnapshotAlignment * kSnapshotAlignment;
}

inline constexpr std::array kSnapshotSections = {"state", "values", "marks"};  // in this order
inline constexpr std::size_t kSnapshotMarkBytes = 16;  // position, source, seven zeros

// One after the other, each at the next boundary: nothing is left to choose, so that nothing can
// overlap.
struct SnapshotLayout {
  struct Section {
    std::uint64_t offset = 0;  // in the body
    std::uint64_t bytes = 0;
  };
  std::array<Section, kSnapshotSections.size()> sections;
  std::uint64_t body_bytes = 0;
};

// REQUIRES: the sum of sizes does not overflow.
constexpr SnapshotLayout snapshot_layout(
    const std::array<std::uint64_t, kSnapshotSections.size()>& sizes) {
  SnapshotLayout layout;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    layout.sections[i] = {layout.body_bytes, sizes[i]};
    layout.body_bytes = snapshot_padded(layout.body_bytes + sizes[i]);
  }
  return layout;
}

// What a session was computed by.
struct SnapshotAbout {
  std::string model_fingerprint;  // Transformer::fingerprint
  std::string attention;          // that ran, as Model.attention
  std::string weight_type;
  std::string kv_type;   // of KV caches; empty: the model has none
  std::string numerics;  // that its last tokens were computed with; equal ones continue bit for bit
  std::string numerics_text;
  std::int64_t numerics_changed_at = 0;  // tokens before it were with others; 0: there are none
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
// looks at, and the tokens, of which the caller knows the vocabulary. Takes memory by
// bytes.size().
SnapshotOf read_snapshot(std::span<const std::byte> bytes);
// The same, but the state stays in `bytes`: SessionImage::state_elsewhere.
SnapshotOf view_snapshot(std::span<const std::byte> bytes);

// SnapshotPreamble: the first 64 bytes of a snapshot.

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

// The header of a snapshot: JSON, so that a person can read what a file is of.

struct SnapshotHeader {
  SnapshotOf of;                  // all but tokens, marks and state
  std::uint32_t value_bytes = 1;  // of one: 1, 2 or 4
  SnapshotLayout layout;
};

// Padded with spaces to a boundary.
std::string write_snapshot_header(const SnapshotHeader& header);

// Throws SnapshotError naming the key: for keys that are unknown, missing or there twice, for
// types, lengths and ranges, and for sections that do not lie as they have to in a body of so many
// bytes.
SnapshotHeader read_snapshot_header(std::string_view text, std::uint64_t body_bytes);

// SnapshotReader: a snapshot that comes in pieces.

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
