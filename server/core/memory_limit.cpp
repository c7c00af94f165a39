// SPDX-License-Identifier: Apache-2.0
#include "server/core/memory_limit.h"

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel {
namespace {

namespace fs = std::filesystem;

// Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
constexpr const char* kFileOfVersion2 = "memory.max";
constexpr const char* kFileOfVersion1 = "memory.limit_in_bytes";

// A mounted hierarchy of control groups that may limit memory.
struct Hierarchy {
  bool is_version_2 = false;
  std::string top;       // the group that is mounted: "/", or in a container its own
  fs::path mount_point;  // as the process sees it
};

// True if `word` is in a list such as "rw,memory".
bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t end = list.find(',');
    if (list.substr(0, end) == word) return true;
    if (end == std::string_view::npos) return false;
    list.remove_prefix(end + 1);
  }
  return false;
}

// The hierarchies in /proc/self/mountinfo, whose lines are
// "ID PARENT DEVICE TOP MOUNT_POINT OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS".
std::vector<Hierarchy> mounted_hierarchies(const fs::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream first(line.substr(0, dash)), second(line.substr(dash + 3));
    std::string word, top, mount_point, type, source, options;
    first >> word >> word >> word >> top >> mount_point;
    second >> type >> source >> options;
    const bool is_version_2 = type == "cgroup2";
    if (is_version_2 || (type == "cgroup" && has_word(options, "memory"))) {
      found.push_back({is_version_2, top, mount_point});
    }
  }
  return found;
}

// The process's group in a hierarchy, from /proc/self/cgroup, whose lines are
// "ID:CONTROLLERS:GROUP"; those of version 2 have neither id nor controllers.
std::string group_in(const Hierarchy& hierarchy, const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_its = hierarchy.is_version_2 ? controllers.empty() && line.starts_with("0:")
                                               : has_word(controllers, "memory");
    if (is_its) return line.substr(second + 1);
  }
  return "/";
}

// The group's place below the mount point; empty where it is outside of what is mounted.
fs::path below_mount_point(const std::string& group, const std::string& top) {
  const fs::path relative = fs::path(group).lexically_relative(top);
  const bool is_outside = relative.empty() || *relative.begin() == "..";
  return is_outside || relative == "." ? fs::path() : relative;
}

// The number of bytes in a file. Nothing where there is no limit: "max", or about 2^63.
std::optional<std::size_t> limit_in(const fs::path& path) {
  std::uint64_t bytes = 0;
  std::ifstream file(path);
  if (!(file >> bytes) || bytes >= std::uint64_t{1} << 62) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

// The least limit of the group and its parents within the hierarchy.
MemoryLimit limit_of(const Hierarchy& hierarchy, const fs::path& root) {
  MemoryLimit least{.bytes = std::numeric_limits<std::size_t>::max(), .source = {}};
  const char* const name = hierarchy.is_version_2 ? kFileOfVersion2 : kFileOfVersion1;
  fs::path below = below_mount_point(group_in(hierarchy, root), hierarchy.top);
  while (true) {
    const fs::path group = below.empty() ? hierarchy.mount_point : hierarchy.mount_point / below;
    const auto bytes = limit_in(root / group.relative_path() / name);
    if (bytes && *bytes < least.bytes) {
      least = {.bytes = *bytes, .source = std::string(name) + " of " + group.string()};
    }
    if (below.empty()) return least;
    below = below.parent_path();
  }
}

// The value of "NAME:  1234 kB" in /proc/meminfo, in bytes; 0 where there is none.
std::size_t memory_info(const fs::path& root, const std::string& name) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    std::istringstream rest(line.substr(name.size() + 1));
    std::uint64_t kilobytes = 0;
    return rest >> kilobytes ? static_cast<std::size_t>(kilobytes) * 1024 : 0;
  }
  return 0;
}

}  // namespace

MemoryLimit read_memory_limit(const std::filesystem::path& root) {
  const std::size_t machine = memory_info(root, "MemTotal");
  MemoryLimit least{.bytes = machine > 0 ? machine : std::numeric_limits<std::size_t>::max(),
                    .source = {}};
  for (const Hierarchy& hierarchy : mounted_hierarchies(root)) {
    MemoryLimit limit = limit_of(hierarchy, root);
    if (limit.bytes < least.bytes) least = std::move(limit);
  }
  if (!least.source.empty()) return least;
  if (const std::size_t available = memory_info(root, "MemAvailable")) {
    return {.bytes = available, .source = "MemAvailable"};
  }
  return {.bytes = machine, .source = machine > 0 ? "MemTotal" : "unknown"};
}

}  // namespace lintel
