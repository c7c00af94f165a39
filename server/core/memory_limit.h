// SPDX-License-Identifier: Apache-2.0
// MemoryLimit: the memory that this process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace lintel {

// The value of a size that follows from the memory limit. No size that can be configured is as
// large.
inline constexpr std::size_t kAutoBytes = SIZE_MAX;

struct MemoryLimit {
  std::size_t bytes = 0;  // 0: unknown
  std::string source;     // "memory.max of /sys/fs/cgroup/system.slice", "MemAvailable"
};

// The least limit of the process's control groups and their parents, of version 2 (memory.max) and
// 1 (memory.limit_in_bytes). Where they have none, or more than the machine's memory, MemAvailable
// of /proc/meminfo. `root` is the directory that has /proc and the mount points of cgroup.
MemoryLimit read_memory_limit(const std::filesystem::path& root = "/");

}  // namespace lintel
