// SPDX-License-Identifier: Apache-2.0
#include "tests/support/eventually.h"

#include <thread>

namespace lintel::testing {

bool eventually(const std::function<bool()>& condition, std::chrono::seconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace lintel::testing
