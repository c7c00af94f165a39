// The header of a snapshot: JSON, so that a person can read what a file is of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/sessions/snapshot.h"
#include "server/sessions/snapshot_layout.h"

namespace lintel {

struct SnapshotHeader {
  SnapshotOf of;                  // all but values, marks and state
  std::uint32_t value_bytes = 1;  // of one: 1, 2 or 4
  SnapshotLayout layout;
};

// Padded with spaces to a boundary.
std::string write_snapshot_header(const SnapshotHeader& header);

// Throws SnapshotError naming the key: for keys that are unknown, missing or there twice, for
// types, lengths and ranges, and for sections that do not lie as they have to in a body of so many
// bytes.
SnapshotHeader read_snapshot_header(std::string_view text, std::uint64_t body_bytes);

}  // namespace lintel
