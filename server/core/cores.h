// How many cores this process may use.
#pragma once

#include <filesystem>

namespace lintel {

// Processors that the threads of this process may run on, and no more than its container has time
// of: cgroup's quota (cpu.max, or cpu.cfs_quota_us), rounded up. At least 1.
int usable_cores();

// The quota's part: what the files below `root` say, rounded up; 0 where they say nothing.
int cores_of_quota(const std::filesystem::path& root);

}  // namespace lintel
