// SPDX-License-Identifier: Apache-2.0
// Runs a test once with each instruction set our kernels are compiled for and this machine has.
#pragma once

// clang-format off
#include "model/core/simd_targets.h"
#include "hwy/targets.h"
// clang-format on

#include <cstdint>

#include "tests/support/catch.h"

namespace lintel::testing {

template <typename Body>
void for_each_instruction_set(Body&& body) {
  struct Restore {
    ~Restore() { hwy::SetSupportedTargetsForTest(0); }
  } restore;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    INFO("instruction set " << hwy::TargetName(target));
    body();
  }
}

}  // namespace lintel::testing
