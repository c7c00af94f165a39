// SPDX-License-Identifier: Apache-2.0
// The share of a sweep's cases that a run goes through: all of them at night, else some, drawn
// differently each day.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/support/sanitized.h"

namespace lintel::testing {

// True if LINTEL_NIGHTLY=1, which `.ci/run --nightly` and `scripts/test.sh --all` set.
inline bool runs_every_case() {
  const char* const nightly = std::getenv("LINTEL_NIGHTLY");
  return nightly != nullptr && std::string_view(nightly) == "1";
}

// True under a sanitizer but at night: it looks for what a program does wrong there, and bounds of
// memory and time are another build's.
inline bool runs_few_cases() { return kSanitized && !runs_every_case(); }

// The seed that cases are drawn by: LINTEL_CASE_SEED, else the number of the day since 1970.
inline std::uint64_t case_seed() {
  if (const char* const given = std::getenv("LINTEL_CASE_SEED")) return std::stoull(given);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(now / std::chrono::hours(24));
}

// True for one case of `share` on average, drawn by its number and case_seed(), and for every case
// at night.
inline bool is_drawn(std::uint64_t number, std::uint64_t share) {
  std::uint64_t bits = number + 0x9E3779B97F4A7C15u * (case_seed() + 1);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;  // SplitMix64
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return runs_every_case() || (bits ^ (bits >> 31)) % share == 0;
}

}  // namespace lintel::testing
