// SPDX-License-Identifier: Apache-2.0
// The memory limit, read from directories that look like /proc and /sys/fs/cgroup.
#include "server/core/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kLimitGiB = std::size_t{1} << 30;

// A machine of 16 GiB, of which 12 are available, without control groups.
class Machine {
 public:
  Machine() { write("proc/meminfo", meminfo(16, 12)); }

  void write(const std::filesystem::path& path, const std::string& text) const {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
  }
  static std::string meminfo(std::size_t total, std::size_t available) {
    return "MemTotal:       " + std::to_string(total << 20) + " kB\nMemFree:  1 kB\n" +
           "MemAvailable:   " + std::to_string(available << 20) + " kB\n";
  }
  // Mounts a hierarchy whose group `top` is at `place`. type: "cgroup2 cgroup2 rw", for example.
  void mount(const std::string& top, const std::string& place, const std::string& type) {
    mounts_ += "31 23 0:28 " + top + " " + place + " rw,nosuid shared:9 master:1 - " + type + "\n";
    write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + mounts_);
  }
  MemoryLimit limit() const { return read_memory_limit(root_.path()); }

 private:
  const TemporaryDirectory root_;
  std::string mounts_;
};

}  // namespace

TEST_CASE("memory limit: what is available, where no control group has a limit") {
  Machine machine;
  CHECK(machine.limit().bytes == 12 * kLimitGiB);
  CHECK(machine.limit().source == "MemAvailable");
  machine.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
  machine.write("proc/self/cgroup", "0::/a\n");
  for (const char* nothing : {"max\n", "", "x", "-", "9223372036854771712\n"}) {
    CAPTURE(nothing);
    machine.write("sys/fs/cgroup/a/memory.max", nothing);
    CHECK(machine.limit().bytes == 12 * kLimitGiB);
  }
  // More than the machine has is no limit.
  machine.write("sys/fs/cgroup/a/memory.max", std::to_string(64 * kLimitGiB));
  CHECK(machine.limit().bytes == 12 * kLimitGiB);
  machine.write("proc/meminfo", "MemTotal: 1048576 kB\n");
  CHECK(machine.limit().bytes == kLimitGiB);
  CHECK(machine.limit().source == "MemTotal");
  machine.write("proc/meminfo", "");
  machine.write("sys/fs/cgroup/a/memory.max", "max\n");
  CHECK(machine.limit().bytes == 0);
  CHECK(machine.limit().source == "unknown");
}

TEST_CASE("memory limit: the least of the group and its parents, cgroup v2") {
  Machine machine;
  machine.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw,nsdelegate");
  machine.write("proc/self/cgroup", "0::/system.slice/lintel.service\n");
  machine.write("sys/fs/cgroup/system.slice/lintel.service/memory.max", "max\n");
  machine.write("sys/fs/cgroup/system.slice/memory.max", std::to_string(2 * kLimitGiB) + "\n");
  CHECK(machine.limit().bytes == 2 * kLimitGiB);
  CHECK(machine.limit().source == "memory.max of /sys/fs/cgroup/system.slice");
  machine.write("sys/fs/cgroup/system.slice/lintel.service/memory.max",
                std::to_string(kLimitGiB) + "\n");
  CHECK(machine.limit().bytes == kLimitGiB);
  machine.write("sys/fs/cgroup/memory.max", "4096\n");  // of a container: its own group
  CHECK(machine.limit().bytes == 4096);
}

TEST_CASE("memory limit: a container that sees its group at the mount point") {
  Machine machine;
  machine.mount("/docker/0a", "/sys/fs/cgroup", "cgroup2 cgroup rw");
  machine.write("sys/fs/cgroup/memory.max", std::to_string(3 * kLimitGiB) + "\n");
  for (const char* group : {"/docker/0a", "/", "/../other", "/docker/0ab"}) {
    CAPTURE(group);
    machine.write("proc/self/cgroup", "0::" + std::string(group) + "\n");
    CHECK(machine.limit().bytes == 3 * kLimitGiB);
  }
  machine.write("proc/self/cgroup", "0::/docker/0a/inner\n");
  machine.write("sys/fs/cgroup/inner/memory.max", std::to_string(2 * kLimitGiB) + "\n");
  CHECK(machine.limit().bytes == 2 * kLimitGiB);
}

TEST_CASE("memory limit: cgroup v1, alone and beside v2") {
  Machine machine;
  machine.mount("/", "/sys/fs/cgroup/cpu", "cgroup cgroup rw,cpu");
  machine.mount("/", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory");
  machine.mount("/", "/sys/fs/cgroup/unified", "cgroup2 cgroup2 rw");
  machine.write("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/pods/one\n0::/\n");
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write("sys/fs/cgroup/memory/pods/memory.limit_in_bytes",
                std::to_string(8 * kLimitGiB) + "\n");
  machine.write("sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes",
                std::to_string(9 * kLimitGiB) + "\n");
  machine.write("sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "1\n");
  CHECK(machine.limit().bytes == 8 * kLimitGiB);
  CHECK(machine.limit().source == "memory.limit_in_bytes of /sys/fs/cgroup/memory/pods");
  machine.write("sys/fs/cgroup/unified/memory.max", std::to_string(kLimitGiB) + "\n");
  CHECK(machine.limit().bytes == kLimitGiB);
}

TEST_CASE("memory limit: this machine's is known") { CHECK(read_memory_limit().bytes > 0); }

}  // namespace lintel::testing
