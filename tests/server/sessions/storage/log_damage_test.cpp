// SPDX-License-Identifier: Apache-2.0
// Bits that flip in SQLite's log after a crash, before it was moved into the database.
#include <string>
#include <vector>

#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

constexpr int kStepsBeforeTheCrash = 14;

// The disk of a killed process, and the outcomes that it had received after each step.
struct Crash {
  TestDisk::Content content;
  std::vector<Sessions> after = {{}};
  std::string log, acknowledged;  // paths
};

Crash crash_with(const DiskStorages& storages, std::size_t log_bytes, ManualClock& clock) {
  Crash crash;
  TestDisk disk;
  SqliteStorage::Options options = storages.options_on(disk);
  options.log_bytes = log_bytes;
  crash.log = (options.directory / "sessions.db-wal").string();
  crash.acknowledged = (options.directory / "acknowledged").string();
  Scenario scenario(/*seed=*/9);
  SqliteStorage storage(options, clock);
  for (int step = 0; step < kStepsBeforeTheCrash; ++step) {
    REQUIRE(scenario.step(storage) == SessionError::kNone);
    crash.after.push_back(scenario.sessions());
  }
  crash.content = disk.now();
  return crash;
}

TEST_CASE(
    "a bit that flips in the log after a crash is reported, and loses no more than what came after "
    "it") {
  // All of it in the log, some of it, and a log of the last step alone, which the database has too:
  // no harm is done there.
  const std::size_t log_bytes = GENERATE(1u << 30, 60'000u, 0u);
  const DiskStorages storages;
  ManualClock clock;
  const Crash crash = crash_with(storages, log_bytes, clock);
  // The reason why it cannot be opened; empty: it can, and holds what it did after the last step
  // that fits.
  int last_step = 0;
  const auto error_of = [&](const TestDisk::Content& content) -> std::string {
    TestDisk disk(content);
    try {
      const auto storage = storages.open(disk);
      for (last_step = kStepsBeforeTheCrash; last_step > 0; --last_step) {
        if (difference(*storage, crash.after[static_cast<std::size_t>(last_step)], true).empty()) {
          break;
        }
      }
      CHECK(difference(*storage, crash.after[static_cast<std::size_t>(last_step)], true) == "");
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  };
  REQUIRE(error_of(crash.content) == "");
  REQUIRE(last_step == kStepsBeforeTheCrash);
  REQUIRE(crash.content.contains(crash.log));

  const std::size_t size = crash.content.at(crash.log).size();
  const std::size_t stride = kSanitized ? 64 * 101 : 64 * 11;
  int reported = 0, lost = 0;
  for (std::size_t at = 0; at < size; at += stride) {
    CAPTURE(log_bytes, at);
    TestDisk::Content content = crash.content;
    content[crash.log][at + at / 64 % 64 % (size - at)] ^= std::byte{1} << (at / 64 % 8);
    const std::string error = error_of(content);
    if (error.empty()) {
      CHECK(last_step == kStepsBeforeTheCrash);
      continue;
    }
    ++reported;
    CHECK_THAT(error, Catch::Contains("are lost") || Catch::Contains("missing"));
    // Accepted as it is, the store is that of an earlier moment, whole.
    content.erase(crash.acknowledged);
    if (error_of(content).empty()) {
      ++lost;
      CHECK(last_step < kStepsBeforeTheCrash);
    }
  }
  CAPTURE(log_bytes, size, reported, lost);
  CHECK((reported > 0) == (log_bytes > 0));
  CHECK((lost > 0) == (log_bytes > 0));
}

TEST_CASE("the number of the last acknowledged commit is noted for the next opening") {
  TestDisk disk;
  const auto file = [&] { return disk.opener()("/acknowledged"); };
  CHECK(CommitWatermark(file()).found() == 0);
  CommitWatermark(file()).note(7);
  CommitWatermark(file()).note(std::int64_t{1} << 40);
  CHECK(CommitWatermark(file()).found() == std::int64_t{1} << 40);
  // Damaged itself it says nothing.
  for (std::size_t at = 0; at < 16; ++at) {
    TestDisk::Content content = disk.now();
    content.at("/acknowledged")[at] ^= std::byte{4};
    TestDisk damaged(std::move(content));
    CHECK(CommitWatermark(damaged.opener()("/acknowledged")).found() == 0);
  }
  // And a disk that takes nothing more is no reason to fail.
  disk.on_change([](std::int64_t) { return TestDisk::Fault::kError; });
  CHECK_NOTHROW(CommitWatermark(file()).note(8));
}

}  // namespace
}  // namespace lintel::testing
