// SPDX-License-Identifier: Apache-2.0
// For what other threads and processes bring about.
#pragma once

#include <chrono>
#include <functional>

namespace lintel::testing {

// Polls until `condition` holds; returns whether it does. The time is for broken code, not for slow
// machines.
bool eventually(const std::function<bool()>& condition,
                std::chrono::seconds at_most = std::chrono::seconds(60));

}  // namespace lintel::testing
