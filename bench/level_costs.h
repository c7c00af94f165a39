// What each level of durability costs streams.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "bench/session_figure.h"
#include "model/transformer.h"

namespace lintel::bench {

struct LevelPlan {
  std::filesystem::path directory;  // a store is made in it, and removed
  int workers = 1;
  int streams = 64;
  int repeats = 5;
  double seconds = 2;  // of each measurement
};

// Each repeat has the levels in turn, beginning with another each time. What one loses is against a
// server without a store that was measured just before or just after it.
std::vector<SessionFigure> level_costs(const std::shared_ptr<const Transformer>& model,
                                       const LevelPlan& plan);

}  // namespace lintel::bench
