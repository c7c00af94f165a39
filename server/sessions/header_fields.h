// The fields of a snapshot's header, in their order: one list for who writes and who reads them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "server/sessions/snapshot_header.h"

namespace lintel {

// Ranges of the header's numbers, and of its texts.
inline constexpr std::int64_t kMostSnapshotPosition = std::int64_t{1} << 62;
inline constexpr std::size_t kMostSnapshotTextBytes = 4096;
inline constexpr std::int64_t kMostSnapshotMillis = std::int64_t{1} << 53;

// All but the sections. `each` has, with a key and what it is of: text(), digest(), number() with
// the range, and number_unless_0() for what is left out where it is 0; each reads into the field,
// or writes what is there. What was read bounds what follows.
template <typename Each>
void each_header_field(Each& each, SnapshotHeader& header) {
  SnapshotOf& of = header.of;
  SessionImageHead& image = of.image;
  each.text("model", image.model);
  each.text("adapter", image.adapter);
  each.text("adapter_fingerprint", image.adapter_fingerprint);
  each.number("max_values", image.max_values, 0, kMostSnapshotPosition);
  each.number("window", image.window, 0, kMostSnapshotPosition);
  each.number("position", image.position, 0,
              image.max_values == 0 ? kMostSnapshotPosition : image.max_values);
  each.number("base", image.base, 0, image.position);
  each.number("state_position", image.state_position, 0, image.position);
  each.digest("digest", image.digest);
  each.digest("base_digest", image.base_digest);
  each.text("model_fingerprint", of.model_fingerprint);
  each.text("attention", of.attention);
  each.text("weight_type", of.weight_type);
  each.text("numerics", of.numerics);
  each.text("numerics_text", of.numerics_text);
  each.number_unless_0("numerics_changed_at", of.numerics_changed_at, image.position);
  each.text("lintel_version", of.lintel_version);
  std::int64_t made =
      std::chrono::duration_cast<std::chrono::milliseconds>(of.made.time_since_epoch()).count();
  each.number("made_unix_millis", made, 0, kMostSnapshotMillis);
  of.made = std::chrono::system_clock::time_point(std::chrono::milliseconds(made));
  std::int64_t value_bytes = header.value_bytes;
  each.number("value_bytes", value_bytes, 1, 4);
  header.value_bytes = static_cast<std::uint32_t>(value_bytes);
}

}  // namespace lintel
