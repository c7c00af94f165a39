// SessionImage: all that a session is, apart from the process it lives in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/core/tensor.h"
#include "server/sessions/digest.h"
#include "server/sessions/value_source.h"

namespace lintel {

// Values from `position` on, up to the next mark, came from `source`. A position where the match of
// stop strings is reset (a call with other stops, a given value) has a mark, too.
struct HistoryMark {
  std::int64_t position = 0;
  ValueSource source = ValueSource::kSampled;

  bool operator==(const HistoryMark&) const = default;
};

// What of an image is no list.
struct SessionImageHead {
  std::string model;    // its name
  std::string adapter;  // empty: none
  std::string adapter_fingerprint;
  std::int64_t max_values = 0;  // 0: unbounded
  std::int64_t window = 0;      // values after which the state is rebuilt; 0: never
  std::int64_t base = 0;        // the history begins here; what lies before is in the state alone
  std::int64_t position = 0;    // values of the sequence, the pending one included
  Digest digest;                // of the history up to `position`
  Digest base_digest;           // and up to `base`
  std::int64_t state_position = 0;  // values that the state holds, at most `position`
};

// What a snapshot carries, and what a session is restored from.
struct SessionImage : SessionImageHead {
  std::vector<std::int32_t> values;  // [base, position); empty where the history was left out
  std::vector<HistoryMark> marks;    // of them, ascending
  // As SequenceState::save wrote it; empty: to be made by reading the values (base is 0 then).
  std::vector<std::byte> state;
  // The same where it is not the image's own but lies in what the image was read from, which
  // outlives it; a state is several hundred times the rest.
  std::span<const std::byte> state_elsewhere;

  std::span<const std::byte> state_bytes() const { return state.empty() ? state_elsewhere : state; }
};

// Zeroes what was drawn and read, before its memory is freed.
inline void zero(SessionImage& image) {
  zero_memory(std::span(image.values));
  zero_memory(std::span(image.state));
  image.values.clear();
  image.state.clear();
  image.state_elsewhere = {};
}

}  // namespace lintel
