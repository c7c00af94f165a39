// SPDX-License-Identifier: Apache-2.0
// Counts what operator new has given out, in the whole executable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "tests/support/sanitized.h"

namespace lintel::fuzz {

// While one lives, allocations that would take the executable more than limit_bytes beyond what it
// held at construction throw std::bad_alloc. One at a time.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t limit_bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  std::size_t peak_bytes() const;  // beyond what was held at construction
};

// CPU seconds that all parsers together may take of an input: a tenth of a second, and for each MB
// what the slowest takes of plain text, five times over. Sanitizers and coverage slow parsers down.
inline double time_limit_seconds(std::size_t bytes) {
#ifdef LINTEL_FUZZER
  constexpr double kSlower = 20;
#else
  constexpr double kSlower = testing::kSanitized ? 20 : 1;
#endif
  return kSlower * (0.1 + 3e-6 * static_cast<double>(bytes));
}

// Runs `parse(bytes)`. Too slow: leaves as a std::logic_error.
template <typename Parse, typename Bytes>
bool within_time(Parse parse, const Bytes& bytes) {
  bool taken = false;
  const double limit = time_limit_seconds(bytes.size());
  // Again where it is too slow: a core that others share takes longer.
  double seconds = limit;
  for (int i = 0; i < 3 && seconds >= limit; ++i) {
    const double taken_now = testing::cpu_seconds_of([&] { taken = parse(bytes); });
    seconds = i == 0 ? taken_now : std::min(seconds, taken_now);
  }
  if (seconds > limit) {
    throw std::logic_error("broken promise: " + std::to_string(bytes.size()) + " bytes took " +
                           std::to_string(seconds) + " s");
  }
  return taken;
}

}  // namespace lintel::fuzz
