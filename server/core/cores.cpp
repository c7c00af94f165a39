#include "server/core/cores.h"

#include <algorithm>
#include <fstream>
#include <thread>

namespace lintel {
namespace {

// Microseconds of a period that all threads have together.
int cores_of(double quota, double period) {
  constexpr double kMost = 1 << 20;
  if (!(quota > 0.0) || !(period > 0.0)) return 0;
  const double cores = std::min(quota / period, kMost);
  const int whole = static_cast<int>(cores);
  return whole < cores ? whole + 1 : whole;
}

}  // namespace

// Linux, Documentation/admin-guide/cgroup-v2.rst ("cpu.max") and scheduler/sched-bwc.rst. A
// container sees its own group at the root.
int cores_of_quota(const std::filesystem::path& root) {
  double quota = 0.0, period = 0.0;
  if (std::ifstream file(root / "cpu.max"); file >> quota >> period) return cores_of(quota, period);
  std::ifstream quota_file(root / "cpu" / "cpu.cfs_quota_us");
  std::ifstream period_file(root / "cpu" / "cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period) return cores_of(quota, period);
  return 0;
}

int usable_cores() {
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int quota = cores_of_quota("/sys/fs/cgroup");
  return quota > 0 ? std::min(processors, quota) : processors;
}

}  // namespace lintel
