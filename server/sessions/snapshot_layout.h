// SnapshotLayout: where the sections of a snapshot lie in its body.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lintel {

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

}  // namespace lintel
