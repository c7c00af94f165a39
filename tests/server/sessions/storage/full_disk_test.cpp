// SPDX-License-Identifier: Apache-2.0
// A storage on a disk without room: what is freed, and who gets it.
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;

constexpr std::size_t kStateBytes = 30'000;
constexpr int kStoredSessions = 12;

// Sessions with a state each, idle.
std::vector<Client> with_states(SessionStorage& storage, int count = kStoredSessions) {
  std::vector<Client> sessions;
  for (int i = 0; i < count; ++i) {
    Client& session = sessions.emplace_back("session " + std::to_string(100 + i));
    REQUIRE(commit_one(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
    REQUIRE(session.open(storage) == Outcome::kNone);
    const std::vector<std::int32_t> tokens(20, i);
    REQUIRE(commit_one(storage, [&](Writes& to) { session.append(to, tokens); }) == Outcome::kNone);
    SessionStorage::StateRef ref{.position = 20};
    REQUIRE(storage.put_state(session.row.id,
                              state_of(100 + static_cast<std::uint64_t>(i), kStateBytes),
                              &ref) == Outcome::kNone);
    REQUIRE(commit_one(storage, [&](Writes& to) { session.states(to, {ref}); }) == Outcome::kNone);
    REQUIRE(commit_one(storage, [&](Writes& to) { session.release(to); }) == Outcome::kNone);
  }
  return sessions;
}

int states_left(SessionStorage& storage, const std::vector<Client>& sessions) {
  int left = 0;
  for (const Client& session : sessions) {
    const SessionStorage::Opened found = storage.find(session.row.id, session.row.owner);
    for (const SessionStorage::StateRef& ref : found.row.states) {
      std::vector<std::byte> state(ref.bytes);
      const Outcome outcome = storage.read_state(ref, state);
      CHECK(storage.holds_state(ref) == (outcome == Outcome::kNone));
      if (outcome == Outcome::kNone) ++left;
    }
  }
  return left;
}

// Creates sessions until one is refused. Returns how many were made.
int fill(SessionStorage& storage, int from = 0) {
  for (int i = from; i < from + 5000; ++i) {
    Client session("filler " + std::to_string(i));
    session.row.marks.assign(3000, 'm');
    const Outcome outcome = commit_one(storage, [&](Writes& to) { session.create(to); });
    if (outcome == Outcome::kNone) continue;
    CHECK(outcome == Outcome::kStoreFull);
    return i - from;
  }
  FAIL("the disk is never full");
  return 0;
}

SqliteStorage::Options large_slots(SqliteStorage::Options options) {
  options.slab_bytes = 100 * StateSlab::slot_bytes_for(kStateBytes);
  return options;
}

TEST_CASE("commit on a full disk: stored states are dropped and the commit succeeds",
          "[threat-59]") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  SqliteStorage storage(large_slots(storages.options_on(disk)), clock);
  std::vector<Client> sessions = with_states(storage);
  REQUIRE(states_left(storage, sessions) == kStoredSessions);
  disk.set_capacity(disk.bytes_in_use());  // not a block is left
  for (Client& session : sessions) {
    REQUIRE(session.open(storage) == Outcome::kNone);
    const std::vector<std::int32_t> tokens(900, 70'000);
    CHECK(commit_one(storage, [&](Writes& to) { session.append(to, tokens); }) == Outcome::kNone);
    CHECK(commit_one(storage, [&](Writes& to) { session.release(to); }) == Outcome::kNone);
    CHECK(session.difference(storage) == "");
  }
  CHECK(states_left(storage, sessions) < kStoredSessions);
  CHECK(storage.health().states_dropped > 0);
  CHECK(storage.health().state == SessionStorage::Health::State::kOk);
}

TEST_CASE("commit on a full disk: states that begin a history and those of running calls stay") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  SqliteStorage storage(large_slots(storages.options_on(disk)), clock);
  std::vector<Client> sessions = with_states(storage);
  Client& base = sessions.front();
  REQUIRE(base.open(storage) == Outcome::kNone);
  REQUIRE(commit_one(storage, [&](Writes& to) { base.states(to, base.row.states, 20); }) ==
          Outcome::kNone);
  REQUIRE(commit_one(storage, [&](Writes& to) { base.release(to); }) == Outcome::kNone);
  Client& running = sessions.back();
  REQUIRE(running.open(storage) == Outcome::kNone);
  disk.set_capacity(disk.bytes_in_use());
  fill(storage);
  CHECK(states_left(storage, {base, running}) == 2);
  CHECK(states_left(storage, sessions) == 2);
  CHECK(storage.health().state == SessionStorage::Health::State::kFull);
}

TEST_CASE("removal on a full disk: succeeds for every session, and new ones find room again",
          "[threat-59]") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  const SqliteStorage::Options options = large_slots(storages.options_on(disk));
  auto storage = std::make_unique<SqliteStorage>(options, clock);
  std::vector<Client> sessions = with_states(*storage);
  // One that is removed is more than the reserve has room for.
  Client& large = sessions.emplace_back("session large");
  REQUIRE(commit_one(*storage, [&](Writes& to) { large.create(to); }) == Outcome::kNone);
  REQUIRE(large.open(*storage) == Outcome::kNone);
  const std::vector<std::int32_t> tokens(40'000, 70'000);
  REQUIRE(commit_one(*storage, [&](Writes& to) { large.append(to, tokens); }) == Outcome::kNone);
  REQUIRE(commit_one(*storage, [&](Writes& to) { large.release(to); }) == Outcome::kNone);
  disk.set_capacity(disk.bytes_in_use() + (64 << 10));
  const int made = fill(*storage);
  CHECK(made > 0);
  CHECK(states_left(*storage, sessions) == 0);
  for (Client& session : sessions) {
    CAPTURE(session.row.id);
    CHECK(session.difference(*storage) == "");  // nothing but states went
    REQUIRE(session.open(*storage) == Outcome::kNone);
    CHECK(commit_one(*storage, [&](Writes& to) { session.remove(to); }) == Outcome::kNone);
    CHECK(storage->find(session.row.id, "alice").outcome == Outcome::kNotFound);
  }
  CHECK(fill(*storage, made) > 0);
  for (int opened = 0; opened < 2; ++opened) {  // the same after the store is reopened
    storage.reset();
    storage = std::make_unique<SqliteStorage>(options, clock);
    for (const Client& session : sessions) {
      CHECK(storage->find(session.row.id, "alice").outcome == Outcome::kNotFound);
    }
    CHECK(storage->list("digits", "filler", 5000, {}).size() >= static_cast<std::size_t>(made));
    CHECK(storage->health().quarantined == 0);
  }
}

TEST_CASE("expired sessions on a full disk: a sweep removes them and writes succeed again") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  SqliteStorage storage(large_slots(storages.options_on(disk)), clock);
  for (int i = 0; i < 30; ++i) {
    Client session("old " + std::to_string(i));
    session.row.expires = clock.wall_time() + std::chrono::hours(1);
    session.row.marks.assign(3000, 'm');
    REQUIRE(commit_one(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  }
  disk.set_capacity(disk.bytes_in_use() + (64 << 10));
  const int made = fill(storage);
  clock.advance(std::chrono::hours(2));
  CHECK(storage.sweep(256) == 30);
  CHECK(fill(storage, made) > 0);
}

TEST_CASE("room that comes back from outside: a full storage takes writes again") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  SqliteStorage storage(large_slots(storages.options_on(disk)), clock);
  disk.set_capacity(disk.bytes_in_use() + (64 << 10));
  const int made = fill(storage);
  disk.set_capacity(disk.bytes_in_use() + (1 << 20));
  storage.sync_states();
  CHECK(fill(storage, made) > 50);
}

TEST_CASE("smaller bound on states: the states beyond it are gone when the store is opened") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  SqliteStorage::Options options = large_slots(storages.options_on(disk));
  std::vector<Client> sessions;
  {
    SqliteStorage storage(options, clock);
    sessions = with_states(storage);
    Client& base = sessions.back();  // in the last slot, and needed
    REQUIRE(base.open(storage) == Outcome::kNone);
    REQUIRE(commit_one(storage, [&](Writes& to) { base.states(to, base.row.states, 20); }) ==
            Outcome::kNone);
    REQUIRE(commit_one(storage, [&](Writes& to) { base.release(to); }) == Outcome::kNone);
  }
  const std::int64_t before = disk.bytes_in_use();
  options.slab_bytes = 4 * StateSlab::slot_bytes_for(kStateBytes);
  {
    SqliteStorage storage(options, clock);
    CHECK(states_left(storage, sessions) == 4 + 1);
    CHECK(states_left(storage, {sessions.back()}) == 1);
    CHECK(disk.bytes_in_use() <=
          before - (kStoredSessions - 5) * static_cast<std::int64_t>(kStateBytes));
    for (const Client& session : sessions) CHECK(session.difference(storage) == "");
    Client& base = sessions.back();
    REQUIRE(base.open(storage) == Outcome::kNone);
    REQUIRE(commit_one(storage, [&](Writes& to) { base.remove(to); }) == Outcome::kNone);
  }
  SqliteStorage storage(options, clock);
  for (const auto& [path, bytes] : disk.now()) {
    if (path.ends_with(".slab")) CHECK(bytes.size() <= options.slab_bytes);
  }
}

TEST_CASE(
    "shorter expiry: expired sessions are removed before the store is used, the rest expire "
    "earlier") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  const auto hours = [](int count) { return std::chrono::hours(count); };
  const auto expiry_of = [&](const SessionStorage::Row& row) {
    return row.marks == "own" ? std::optional<std::chrono::system_clock::time_point>()
                              : row.used + hours(2);
  };
  constexpr std::int64_t kSeconds = 7200;
  {
    SqliteStorage storage(storages.options_on(disk), clock);
    CHECK(storage.shorten_expiry(720 * 3600, [](const auto&) { return std::nullopt; }) == 0);
    for (int i = 0; i < 600; ++i) {
      Client session("session " + std::to_string(i));
      session.row.used = clock.wall_time() - (i % 2 == 0 ? hours(3) : hours(1));
      session.row.expires = session.row.used + hours(720);
      if (i % 3 == 0) session.row.marks = "own";
      REQUIRE(commit_one(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
    }
  }
  SqliteStorage storage(storages.options_on(disk), clock);
  CHECK(storage.shorten_expiry(kSeconds, expiry_of) == 200);
  CHECK(storage.shorten_expiry(kSeconds, expiry_of) == 0);
  CHECK(storage.health().sessions == 400);
  clock.advance(hours(1) + std::chrono::minutes(1));
  std::size_t swept = 0;
  for (std::size_t some = 1; some > 0; swept += some) some = storage.sweep(256);
  CHECK(swept == 200);
  CHECK(storage.health().sessions == 200);
}

std::string refusal_of(const std::filesystem::path& directory) {
  try {
    const StorageDirectory opened(directory);
    return "";
  } catch (const StorageError& error) {
    return error.what();
  }
}

TEST_CASE("store directory with mode 0777: set to 0700 before anything in it is read",
          "[threat-11]") {
  const TemporaryDirectory directory;
  const std::filesystem::path store = directory.path() / "store";
  std::filesystem::create_directory(store);
  REQUIRE(::chmod(store.c_str(), 0777) == 0);
  CHECK(refusal_of(store) == "");
  struct stat found {};
  REQUIRE(::stat(store.c_str(), &found) == 0);
  CHECK((found.st_mode & 07777) == 0700);
}

TEST_CASE("symbolic link in the store directory: refused by name, and its target is not created",
          "[threat-11]") {
  const TemporaryDirectory directory;
  const std::filesystem::path store = directory.path() / "store", target = directory.path() / "x";
  std::filesystem::create_directory(store);
  const std::string name = GENERATE("lock", "sessions.db", "sessions.db-wal", "acknowledged",
                                    "reserve", "states-8192.slab", "documents.db", "documents.key");
  std::filesystem::create_symlink(target, store / name);
  CHECK_THAT(refusal_of(store), Catch::Contains(name) && Catch::Contains("no regular file"));
  CHECK_FALSE(std::filesystem::exists(target));
  CHECK_THROWS_AS(open_storage_file(store / name), std::system_error);
  CHECK_FALSE(std::filesystem::exists(target));
}

}  // namespace
}  // namespace lintel::testing
