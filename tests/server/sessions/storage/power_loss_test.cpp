// SPDX-License-Identifier: Apache-2.0
// What is on the disk after the power went, at any moment.
#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr int kStepsBeforePowerLoss = 40;

int images_to_open() {
  const char* const asked = std::getenv("LINTEL_POWER_LOSS_IMAGES");
  return asked == nullptr ? 60 : std::atoi(asked);
}

// LINTEL_POWER_LOSS_IMAGES=1000 opens more of them.
TEST_CASE("after a power loss acknowledged writes are there, and nothing else") {
  struct Image {
    TestDisk::Content content;
    std::size_t acknowledged;
  };
  const int wanted = images_to_open();
  int opened = 0;
  for (std::uint64_t seed = 1; opened < wanted; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    DiskStorages storages;
    TestDisk disk;
    std::vector<Image> images;
    std::vector<Sessions> after = {{}};  // each step
    std::atomic<std::size_t> acknowledged{0};
    disk.on_change([&](std::int64_t) {
      if (random() % 40 == 0) {
        const auto loss = static_cast<TestDisk::Loss>(random() % 4);
        images.push_back({disk.after_power_loss_locked(loss, random), acknowledged.load()});
      }
      return TestDisk::Fault::kNone;
    });
    Scenario scenario(seed);
    auto storage = storages.open(disk);
    for (int step = 0; step < kStepsBeforePowerLoss; ++step) {
      REQUIRE(scenario.step(*storage) == SessionError::kNone);
      after.push_back(scenario.sessions());
      ++acknowledged;
      if (step % 10 == 5) storage->sync_states();
      if (step == 25) {
        storage.reset();
        storage = storages.open(disk);
        scenario.closed();
      }
    }
    disk.on_change({});
    storage.reset();

    for (std::size_t i = 0; i < images.size() && opened < wanted; ++i, ++opened) {
      CAPTURE(i, images[i].acknowledged);
      TestDisk left(images[i].content);
      const auto again = storages.open(left);
      CHECK(again->health().quarantined == 0);
      const std::string fault = difference(*again, after[images[i].acknowledged], true);
      if (!fault.empty() && images[i].acknowledged + 1 < after.size()) {
        // The step that was being committed may be there, whole.
        CAPTURE(fault);
        CHECK(difference(*again, after[images[i].acknowledged + 1], true) == "");
      } else {
        CHECK(fault == "");
      }
      Client one_more("one more");
      CHECK(commit_one(*again, [&](Writes& to) { one_more.create(to); }) == SessionError::kNone);
    }
  }
}

}  // namespace
}  // namespace lintel::testing
