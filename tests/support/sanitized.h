// SPDX-License-Identifier: Apache-2.0
// What a bound on time goes by: CPU time, and whether this build checks itself at run time, which
// makes it several times slower.
#pragma once

#include <time.h>

namespace lintel::testing {

// Sanitizers look for what a program does wrong, not for which numbers come out: where a test goes
// through many combinations for its numbers' sake, a share of them that reaches the same code is
// enough there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Seconds that the calling thread computes in `function`, called once: however busy the machine is
// with others.
template <typename Function>
double cpu_seconds_of(Function&& function) {
  const auto seconds = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double before = seconds();
  function();
  return seconds() - before;
}

}  // namespace lintel::testing
