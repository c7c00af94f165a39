// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>
#include <thread>

#include "server/core/threads.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST_CASE("a container's quota is so many cores, rounded up") {
  const TemporaryDirectory root;
  CHECK(cores_of_quota(root.path()) == 0);
  const auto of = [&](const std::string& text) {
    write(root.path() / "cpu.max", text);
    return cores_of_quota(root.path());
  };
  CHECK(of("200000 100000\n") == 2);
  CHECK(of("150000 100000\n") == 2);
  CHECK(of("5000 100000\n") == 1);
  CHECK(of("max 100000\n") == 0);
  for (const char* nonsense : {"", "x", "100000", "-1 100000", "100000 0", "nan nan"}) {
    CAPTURE(nonsense);
    CHECK(of(nonsense) == 0);
  }
  CHECK(of("1e300 1") > 0);
}

TEST_CASE("the older files say the same") {
  const TemporaryDirectory root;
  write(root.path() / "cpu" / "cpu.cfs_quota_us", "-1\n");
  write(root.path() / "cpu" / "cpu.cfs_period_us", "100000\n");
  CHECK(cores_of_quota(root.path()) == 0);
  write(root.path() / "cpu" / "cpu.cfs_quota_us", "400000\n");
  CHECK(cores_of_quota(root.path()) == 4);
}

TEST_CASE("there are no more usable cores than processors, and one at least") {
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

}  // namespace
}  // namespace lintel::testing
