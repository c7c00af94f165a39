// SPDX-License-Identifier: Apache-2.0
// A process that is killed in the middle of a commit.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace lintel::testing {
namespace {

constexpr int kChildSteps = 25;

// The number after the last `word` of a text; 0: there is none.
long last_number(const std::string& text, const std::string& word) {
  const std::size_t at = text.rfind(word);
  return at == std::string::npos ? 0 : std::atol(text.c_str() + at + word.size());
}

int kills_to_do() {
  const char* const asked = std::getenv("LINTEL_STORAGE_KILLS");
  return asked == nullptr ? 25 : std::atoi(asked);
}

// LINTEL_STORAGE_KILLS=1000 kills at more places.
TEST_CASE("writes acknowledged to a killed process are in the storage") {
  const std::uint64_t seed = GENERATE(1, 2);
  CAPTURE(seed);
  const auto child = [&](const TemporaryDirectory& directory, long at) {
    return std::vector<std::string>{LINTEL_STORAGE_CHILD, directory.path().string(),
                                    std::to_string(seed), std::to_string(kChildSteps),
                                    std::to_string(at)};
  };
  // The same steps, on a disk that is none.
  std::vector<Sessions> after = {{}};
  DiskStorages storages;
  TestDisk disk;
  Scenario scenario(seed);
  {
    const auto storage = storages.open(disk);
    for (int step = 0; step < kChildSteps; ++step) {
      REQUIRE(scenario.step(*storage) == SessionError::kNone);
      after.push_back(scenario.sessions());
    }
  }
  const TemporaryDirectory undisturbed;
  Process whole(child(undisturbed, -1));
  REQUIRE(whole.wait() == 0);
  const long changes = last_number(whole.out(), "changes ");
  REQUIRE(changes > 4 * kChildSteps);

  const int kills = (kills_to_do() + 1) / 2;
  for (int i = 0; i < kills; ++i) {
    const long at = (2 * i + 1) * changes / (2 * kills);
    CAPTURE(at);
    const TemporaryDirectory directory;
    Process killed(child(directory, at));
    REQUIRE(killed.wait() == 128 + 9);
    const auto acknowledged = static_cast<std::size_t>(last_number(killed.out(), "acknowledged "));
    CAPTURE(acknowledged);
    SqliteStorage::Options options;
    options.directory = directory.path();
    const ManualClock clock;
    SqliteStorage storage(options, clock);
    CHECK(storage.health().quarantined == 0);
    const std::string fault = difference(storage, after[acknowledged], true);
    if (!fault.empty() && acknowledged + 1 < after.size()) {
      CAPTURE(fault);
      CHECK(difference(storage, after[acknowledged + 1], true) == "");
    } else {
      CHECK(fault == "");
    }
  }
}

}  // namespace
}  // namespace lintel::testing
