// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "bench/session_costs.h"

namespace lintel::bench {

// What sessions on a disk cost: commits, states, and a store that is opened.

struct StoragePlan {
  std::filesystem::path directory;  // stores are made in it, and removed
  int sessions = 10'000;            // of the store that is opened
  int repeats = 5;
  int count = 100;  // of what a repeat measures
};

std::vector<SessionFigure> commit_costs(const StoragePlan& plan);
// States of the session's size, put, read and woken from; and woken from its tokens.
std::vector<SessionFigure> wake_costs(MadeSession& session, const StoragePlan& plan);
std::vector<SessionFigure> open_costs(const StoragePlan& plan);

}  // namespace lintel::bench
