// Whether this build checks itself at run time, which makes it several times slower.
#pragma once

namespace lintel::testing {

// Sanitizers look for what a program does wrong, not for which numbers come out: where a test goes
// through many combinations for its numbers' sake, a share of them that reaches the same code is
// enough there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace lintel::testing
