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

// SnapshotError: the reason why bytes are not a snapshot of a session.

class SnapshotError : public std::runtime_error {
 public:
  enum class Kind {
    kDamaged,  // bytes are missing, extra or changed
    kInvalid,  // complete, but a field is not valid
  };

  // what() begins with "snapshot: " and names the field.
  SnapshotError(Kind kind, const std::string& message)
      : std::runtime_error("snapshot: " + message), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// SnapshotLayout: the places of a snapshot's sections in its body.

inline constexpr std::size_t kSnapshotAlignment = 64;  // of sections, header and body

constexpr std::uint64_t snapshot_padded(std::uint64_t bytes) {
  return (bytes + kSnapshotAlignment - 1) / kSnapshotAlignment * kSnapshotAlignment;
}

inline constexpr std::array kSnapshotSections = {"state", "values", "marks"};  // in this order
inline constexpr std::size_t kSnapshotMarkBytes = 16;  // position, source, seven zeros

// Sections one after the other, each at the next boundary: their places follow from their sizes, so
// they cannot overlap.
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

// The model and the machine that computed a session.
struct SnapshotAbout {
  std::string model_fingerprint;  // Transformer::fingerprint
  std::string attention;          // the kind in use, as Model.attention
  std::string weight_type;
  std::string kv_type;   // of KV caches; empty: the model has none
  std::string numerics;  // of its last tokens; equal ones continue bit for bit
  std::string numerics_text;
  std::int64_t numerics_changed_at = 0;  // tokens before it were computed with others; 0: none
  std::string lintel_version;            // of the writer
  std::chrono::system_clock::time_point made;  // to the millisecond
};

struct SnapshotOf : SnapshotAbout {
  SessionImage image;
};

inline constexpr std::size_t kMostSnapshotHeaderBytes = 64 << 10;

// The bytes of a snapshot. REQUIRES: read_snapshot() would accept the image. The caller zeroes the
// bytes after their use: they are the content of the session.
std::vector<std::byte> write_snapshot(const SnapshotOf& snapshot);

// The same in two steps, so that the state is written in place and not copied.
class SnapshotDraft {
 public:
  // `image`: without its state, which will have state_bytes.
  SnapshotDraft(const SnapshotAbout& about, const SessionImage& image, std::size_t state_bytes);
  ~SnapshotDraft();  // zeroes an unfinished draft
  SnapshotDraft(const SnapshotDraft&) = delete;
  SnapshotDraft& operator=(const SnapshotDraft&) = delete;

  // The buffer to append the state to; it has room for it.
  std::vector<std::byte>& bytes() { return bytes_; }
  // `image`: the same as before. The draft cannot be used afterwards.
  std::vector<std::byte> finish(const SessionImage& image);

 private:
  std::vector<std::byte> bytes_;
  std::size_t header_bytes_ = 0;
  std::uint32_t value_bytes_ = 1;
  SnapshotLayout layout_;
};

// Reads all bytes of a snapshot, which may be hostile. Throws SnapshotError. The result is
// consistent: lengths, order and ranges of everything except the state, which SequenceState::load
// checks, and the tokens, whose vocabulary the caller knows. Takes memory in proportion to
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
  std::uint64_t body_bytes = 0;  // of the sections, with padding
  Digest checksum;               // of header and body

  std::array<std::byte, kSnapshotPreambleBytes> encode() const;
  // Nothing if the bytes are not a preamble. The caller has to refuse other versions.
  static std::optional<SnapshotPreamble> decode(
      std::span<const std::byte, kSnapshotPreambleBytes> bytes);

  // Bytes of the whole snapshot. REQUIRES: read_snapshot_preamble() accepted it, so that nothing
  // overflows.
  std::uint64_t total_bytes() const { return kSnapshotPreambleBytes + header_bytes + body_bytes; }
};

// Reads the preamble at the start of `bytes`. Throws SnapshotError if they are too few or not a
// snapshot, and for another version and for sizes that no snapshot has.
SnapshotPreamble read_snapshot_preamble(std::span<const std::byte> bytes);
// Throws SnapshotError if `found` is not the number of bytes in the preamble.
void check_snapshot_bytes(const SnapshotPreamble& preamble, std::uint64_t found);

// The header of a snapshot: JSON, so that people can read what a file contains.

struct SnapshotHeader {
  SnapshotOf of;                  // without tokens, marks and state
  std::uint32_t value_bytes = 1;  // bytes of a token: 1, 2 or 4
  SnapshotLayout layout;
};

// The header as JSON, padded with spaces to a boundary.
std::string write_snapshot_header(const SnapshotHeader& header);

// Reads a header. Throws SnapshotError naming the key: for unknown, missing or repeated keys, for
// types, lengths and ranges, and for sections that are not in their places in a body of body_bytes.
SnapshotHeader read_snapshot_header(std::string_view text, std::uint64_t body_bytes);

// SnapshotReader: a snapshot that is received in pieces.

// Gathers pieces, which may be hostile. A faulty preamble, or more bytes than are allowed or
// announced, are refused with the piece that shows it. Holds at most twice the bytes received, and
// zeroes them. Used by one thread at a time.
class SnapshotReader {
 public:
  // most_bytes: bound of the whole snapshot: the memory its session may take, and
  // kMostSnapshotHeaderBytes.
  explicit SnapshotReader(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  ~SnapshotReader();
  SnapshotReader(const SnapshotReader&) = delete;
  SnapshotReader& operator=(const SnapshotReader&) = delete;

  // Adds a piece. Throws SnapshotError; the reader cannot be used then.
  void add(std::span<const std::byte> piece);
  // The snapshot, as by view_snapshot(), after all pieces were added: the state remains in the
  // reader, which outlives the result.
  SnapshotOf view() const;
  // The snapshot, as by read_snapshot(); zeroes the bytes.
  SnapshotOf finish();

  std::uint64_t bytes() const { return bytes_.size(); }  // received so far
  // Bytes of the whole snapshot; nothing before its preamble was received.
  std::optional<std::uint64_t> total_bytes() const;

 private:
  void grow(std::size_t needed);

  const std::uint64_t most_bytes_;
  std::optional<SnapshotPreamble> preamble_;
  std::vector<std::byte> bytes_;
};

}  // namespace lintel
