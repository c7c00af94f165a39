// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/state_slab.h"

#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/server/sessions/storage/storage_calls.h"
#include "tests/server/sessions/storage/test_disk.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kSlabStateBytes = 5000, kSlabSlotBytes = 8192;

// A slab of at most `slots` slots.
struct Slab {
  explicit Slab(TestDisk& disk, std::uint64_t slots = 100)
      : slab(disk.opener()("slab"), kSlabSlotBytes, slots * kSlabSlotBytes) {}
  StateSlab::Slot put(std::uint64_t seed, std::int64_t position = 7) {
    StateSlab::Slot slot;
    REQUIRE(slab.write("a", position, state_of(seed), &slot));
    return slot;
  }
  bool has(const StateSlab::Slot& slot, std::uint64_t seed, std::int64_t position = 7) {
    std::vector<std::byte> state(kSlabStateBytes);
    return slab.read(slot, position, state) && state == state_of(seed);
  }
  StateSlab slab;
};

TEST_CASE("a slot has room for its preamble and begins at a page") {
  CHECK(StateSlab::slot_bytes_for(1) == 4096);
  CHECK(StateSlab::slot_bytes_for(4032) == 4096);
  CHECK(StateSlab::slot_bytes_for(4033) == 8192);
  CHECK(StateSlab::slot_bytes_for(271'360) == 274'432);  // of the paper's size
}

TEST_CASE("a state goes into the lowest free slot, never over a live one") {
  TestDisk disk;
  Slab slab(disk);
  std::vector<StateSlab::Slot> slots;
  for (std::uint64_t i = 0; i < 70; ++i) {
    slots.push_back(slab.put(i));
    CHECK(slots.back().index == i);
  }
  slab.slab.release(65);
  slab.slab.release(3);
  CHECK(slab.put(100).index == 3);
  CHECK(slab.put(101).index == 65);
  CHECK(slab.put(102).index == 70);
  CHECK(slab.slab.slots_in_use() == 71);
  for (std::uint64_t i = 0; i < 70; ++i) CHECK(slab.has(slots[i], i) == (i != 3 && i != 65));
}

TEST_CASE("a slot that is shared is free after the last release, and then holds zeros") {
  TestDisk disk;
  Slab slab(disk);
  const StateSlab::Slot slot = slab.put(1);
  slab.slab.use(slot.index);
  slab.slab.use(slot.index);
  slab.slab.release(slot.index);
  slab.slab.release(slot.index);
  CHECK(slab.has(slot, 1));
  CHECK(slab.put(2).index == 1);
  slab.slab.release(slot.index);
  CHECK(!slab.has(slot, 1));
  const std::vector<std::byte> bytes = disk.now().at("slab");
  CHECK(std::all_of(bytes.begin(), bytes.begin() + kSlabSlotBytes,
                    [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_CASE("another state, another position and a torn write are refused") {
  TestDisk disk;
  Slab slab(disk);
  const StateSlab::Slot old = slab.put(1);
  slab.slab.release(old.index);
  const StateSlab::Slot now = slab.put(2);  // the same session, the same position
  REQUIRE(now.index == old.index);
  CHECK(slab.has(now, 2));
  CHECK(!slab.has(old, 1));
  CHECK(!slab.has(now, 2, 8));
  const std::vector<std::byte> whole = disk.now().at("slab");
  REQUIRE(whole.size() == 64 + kSlabStateBytes);
  std::vector<std::byte> state(kSlabStateBytes);
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 37) {
    CAPTURE(bytes);
    TestDisk torn(TestDisk::Content{
        {"slab", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes)}}});
    Slab left(torn);
    CHECK(!left.slab.read(now, 7, state));
    TestDisk::Content content{{"slab", whole}};
    content["slab"][bytes] ^= std::byte{4};
    TestDisk flipped(content);
    CHECK(!Slab(flipped).slab.read(now, 7, state));
  }
}

TEST_CASE("a slab that is full says so, by its limit and by its disk, and takes states again") {
  TestDisk disk;
  Slab slab(disk, 2);
  slab.put(1);
  slab.put(2);
  StateSlab::Slot slot;
  CHECK(!slab.slab.write("a", 7, state_of(3), &slot));
  slab.slab.release(0);
  disk.on_change([](std::int64_t) { return TestDisk::Fault::kNoSpace; });
  CHECK(!slab.slab.write("a", 7, state_of(3), &slot));
  disk.on_change([](std::int64_t) { return TestDisk::Fault::kError; });
  CHECK_THROWS(slab.slab.write("a", 7, state_of(3), &slot));
  CHECK(slab.slab.slots_in_use() == 1);
  disk.on_change({});
  CHECK(slab.put(3).index == 0);
}

TEST_CASE("a sync is of what was written, and is not lost by one that failed") {
  TestDisk disk;
  Slab slab(disk);
  slab.slab.sync();
  CHECK(disk.changes() == 0);  // nothing to do
  slab.put(1);
  disk.on_change([](std::int64_t) { return TestDisk::Fault::kError; });
  CHECK_THROWS(slab.slab.sync());
  disk.on_change({});
  slab.slab.sync();
  const std::int64_t changes = disk.changes();
  slab.slab.sync();
  CHECK(disk.changes() == changes);
}

TEST_CASE("a punched slot of a real file reads as zeros and takes no room", "[threat-11]") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "states-1048576.slab";
  StateSlab slab(open_storage_file(path), 1 << 20, std::uint64_t{1} << 30);
  const std::vector<std::byte> state = state_of(1, (1 << 20) - 64);
  std::vector<std::byte> read(state.size());
  StateSlab::Slot slot;
  REQUIRE(slab.write("a", 1, state, &slot));
  slab.sync();
  struct stat before {
  }, after{};
  REQUIRE(stat(path.c_str(), &before) == 0);
  CHECK((before.st_mode & 0777) == 0600);
  REQUIRE(slab.read(slot, 1, read));
  CHECK(read == state);
  slab.release(slot.index);
  CHECK(!slab.read(slot, 1, read));
  slab.sync();
  REQUIRE(stat(path.c_str(), &after) == 0);
  CHECK(after.st_blocks < before.st_blocks);
}

TEST_CASE("threads that write and release at once never get each other's slots") {
  TestDisk disk;
  Slab slab(disk, 1000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::byte> state(kSlabStateBytes);
      for (std::uint64_t i = 0; i < 100; ++i) {
        StateSlab::Slot slot;
        const std::uint64_t seed = thread * 1000 + i;
        if (!slab.slab.write("a", 1, state_of(seed), &slot)) ++wrong;
        if (!slab.slab.read(slot, 1, state) || state != state_of(seed)) ++wrong;
        if (i % 2 == 0) slab.slab.release(slot.index);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(slab.slab.slots_in_use() == 4 * 50);
}

}  // namespace
}  // namespace lintel::testing
