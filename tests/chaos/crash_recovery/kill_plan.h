// SPDX-License-Identifier: Apache-2.0
// Where a server is to die, and how far it came: what the harness and the preloaded shim share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lintel::testing {

// The calls whose effects the rest of the world sees.
enum class SystemCall : std::int64_t {
  kWrite,
  kPwrite,
  kWritev,
  kSendmsg,
  kFdatasync,
  kFsync,
  kFtruncate,
};
inline constexpr std::size_t kSystemCalls = 7;
inline constexpr std::array<const char*, kSystemCalls> kSystemCallNames = {
    "write", "pwrite", "writev", "sendmsg", "fdatasync", "fsync", "ftruncate"};

// Halfway: after the first half of the bytes; where there are none, before.
enum class When : std::int64_t { kBefore, kHalfway, kAfter };
inline constexpr std::array<const char*, 3> kWhenNames = {"before", "halfway through", "after"};

// A plan in a file that LINTEL_TEST_KILL names, mapped by both. All zero: nothing is killed, all is
// counted.
struct KillPlan {
  std::atomic<std::int64_t> number;  // of the call that is the last, from 1; 0: none
  SystemCall call{};
  When when{};
  std::array<std::atomic<std::int64_t>, kSystemCalls> counts;  // so far
  std::atomic<std::int64_t> killed;                            // by the plan
};

}  // namespace lintel::testing
