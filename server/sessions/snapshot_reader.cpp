#include "server/sessions/snapshot_reader.h"

#include <algorithm>
#include <string>

#include "model/core/tensor.h"

namespace lintel {
namespace {

// More than any preamble and header, so that these are taken whole.
constexpr std::size_t kLeastCapacity = 4096;
// A snapshot of up to so many bytes may lie about them.
constexpr std::uint64_t kAtOnce = 1 << 20;

}  // namespace

SnapshotReader::~SnapshotReader() { zero_memory(std::span(bytes_)); }

void SnapshotReader::add(std::span<const std::byte> piece) {
  // The preamble is checked before anything after it is kept.
  while (!preamble_ && !piece.empty()) {
    const std::size_t count = std::min(piece.size(), kSnapshotPreambleBytes - bytes_.size());
    grow(bytes_.size() + count);
    bytes_.insert(bytes_.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
    piece = piece.subspan(count);
    if (bytes_.size() < kSnapshotPreambleBytes) return;
    preamble_ = read_snapshot_preamble(bytes_);
    if (preamble_->total_bytes() > most_bytes_) {
      throw SnapshotError(SnapshotError::Kind::kInvalid,
                          "found " + std::to_string(preamble_->total_bytes()) +
                              " bytes, expected at most " + std::to_string(most_bytes_));
    }
  }
  if (piece.empty()) return;
  if (piece.size() > preamble_->total_bytes() - bytes_.size()) {
    check_snapshot_bytes(*preamble_, bytes_.size() + piece.size());
  }
  grow(bytes_.size() + piece.size());
  bytes_.insert(bytes_.end(), piece.begin(), piece.end());
}

SnapshotOf SnapshotReader::view() const { return view_snapshot(bytes_); }

SnapshotOf SnapshotReader::finish() {
  SnapshotOf of = read_snapshot(bytes_);
  zero_memory(std::span(bytes_));
  bytes_.clear();
  return of;
}

std::optional<std::uint64_t> SnapshotReader::total_bytes() const {
  return preamble_ ? std::optional(preamble_->total_bytes()) : std::nullopt;
}

// What says that it is small at once, else by doubling and never beyond what is to come; what is
// outgrown is zeroed.
void SnapshotReader::grow(std::size_t needed) {
  if (needed <= bytes_.capacity()) return;
  std::size_t capacity = std::max({needed, 2 * bytes_.capacity(), kLeastCapacity});
  if (preamble_ && preamble_->total_bytes() <= kAtOnce) {
    capacity = std::max<std::size_t>(needed, preamble_->total_bytes());
  } else if (preamble_) {
    capacity = std::max(needed, std::min<std::size_t>(capacity, preamble_->total_bytes()));
  }
  std::vector<std::byte> larger;
  larger.reserve(capacity);
  larger.assign(bytes_.begin(), bytes_.end());
  zero_memory(std::span(bytes_));
  bytes_ = std::move(larger);
}

}  // namespace lintel
