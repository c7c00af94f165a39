#include "bench/store_load.h"

#include <algorithm>
#include <cmath>

namespace lintel::bench {
namespace {

constexpr double kMostOfACore = 0.5;

}  // namespace

StoreLoad store_load(const FleetPlan& plan, StoreLevel level) {
  StoreLoad load;
  load.keys = plan.idle_sessions * plan.keys_per_session;
  load.bytes = plan.idle_sessions * plan.session_bytes;
  load.running = plan.calls_per_second * plan.call_seconds;
  double between = 0;  // seconds between writes of one running call
  switch (level) {
    case StoreLevel::kCall:
      between = plan.lease_seconds / 3;
      break;
    case StoreLevel::kInput:
      between = std::min(plan.values_seconds, plan.lease_seconds / 3);
      break;
    case StoreLevel::kToken:
      between = plan.commit_seconds;
      break;
  }
  const double per_call = plan.scripts_per_call - (level == StoreLevel::kCall ? 1 : 0);
  load.scripts_per_second = per_call * plan.calls_per_second + load.running / between;
  const double by_memory = load.bytes / (plan.master_bytes * plan.fill);
  const double by_core = load.scripts_per_second * plan.script_seconds / kMostOfACore;
  load.masters = std::max<std::int64_t>(1, std::llround(std::ceil(std::max(by_memory, by_core))));
  const double masters = static_cast<double>(load.masters);
  load.bytes_per_master = load.bytes / masters;
  load.scripts_per_master = load.scripts_per_second / masters;
  load.core_share = load.scripts_per_master * plan.script_seconds;
  return load;
}

}  // namespace lintel::bench
