// SPDX-License-Identifier: Apache-2.0
// What a storage on a disk does beyond the contract of all.
#include "server/sessions/storage/sqlite/sqlite_storage.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <fstream>
#include <future>

#include "server/sessions/storage/sqlite/sqlite_schema.h"
#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Health = SessionStorage::Health;

// A storage in a directory of its own.
struct OnDisk {
  OnDisk() { options.directory = directory.path() / "store"; }
  std::unique_ptr<SqliteStorage> open() { return std::make_unique<SqliteStorage>(options, clock); }
  std::string error() {
    try {
      open();
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  }
  void run_sql(const char* sql) {
    sqlite3* database = nullptr;
    REQUIRE(sqlite3_open((options.directory / "sessions.db").c_str(), &database) == SQLITE_OK);
    CHECK(sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(database);
  }

  TemporaryDirectory directory;
  ManualClock clock;
  SqliteStorage::Options options;
};

TEST_CASE("a second opener is refused with the holder's process id") {
  OnDisk store;
  auto first = store.open();
  CHECK_THAT(store.error(), Catch::Contains("in use by pid " + std::to_string(getpid())));
  first.reset();
  CHECK(store.error() == "");
}

TEST_CASE("a second connection is refused, even if it ignores the lock file") {
  OnDisk store;
  const auto storage = store.open();
  sqlite3* other = nullptr;
  REQUIRE(sqlite3_open((store.options.directory / "sessions.db").c_str(), &other) == SQLITE_OK);
  CHECK(sqlite3_exec(other, "SELECT * FROM session", nullptr, nullptr, nullptr) == SQLITE_BUSY);
  sqlite3_close(other);
}

TEST_CASE("a store is readable by its user alone", "[threat-11]") {
  OnDisk store;
  const auto storage = store.open();
  Client a("a");
  REQUIRE(commit_one(*storage, [&](Writes& to) { a.create(to); }) == SessionError::kNone);
  REQUIRE(a.open(*storage) == SessionError::kNone);
  SessionStorage::StateRef ref;
  REQUIRE(storage->put_state("a", state_of(1), &ref) == SessionError::kNone);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(store.options.directory)) {
    struct stat status {};
    REQUIRE(stat(entry.path().c_str(), &status) == 0);
    CAPTURE(entry.path());
    CHECK((status.st_mode & 0777) == 0600);
    ++files;
  }
  CHECK(files == 6);  // lock, database, its log, what was acknowledged, a reserve, a slab
  struct stat status {};
  REQUIRE(stat(store.options.directory.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
}

TEST_CASE("files that are no store's are refused by name, as are other databases and versions") {
  OnDisk store;
  std::filesystem::create_directories(store.options.directory);
  std::filesystem::create_directory(store.options.directory / "lost+found");
  std::ofstream(store.options.directory / "letter.txt") << "dear";
  CHECK_THAT(store.error(), Catch::Contains("letter.txt"));
  std::filesystem::remove(store.options.directory / "letter.txt");
  CHECK(store.error() == "");
  store.run_sql("PRAGMA user_version=2");
  CHECK_THAT(store.error(), Catch::Contains("version 2, not 1"));
  store.run_sql("PRAGMA user_version=1; PRAGMA application_id=7");
  CHECK_THAT(store.error(), Catch::Contains("database of something else"));
  std::ofstream(store.options.directory / "sessions.db") << std::string(5000, 'x');
  CHECK_THAT(store.error(), Catch::Contains("not a database"));
}

TEST_CASE("a store that cannot be written cannot be opened") {
  OnDisk store;
  std::ofstream(store.directory.path() / "file") << "x";
  store.options.directory = store.directory.path() / "file";
  CHECK(store.error() != "");
  store.options.directory = store.directory.path() / "no" / "parent";
  CHECK_THAT(store.error(), Catch::Contains("No such file"));
}

TEST_CASE("calls in progress are found when a store is opened") {
  OnDisk store;
  Client in_journal("journal"), in_row("row"), ended("ended");
  {
    const auto storage = store.open();
    for (Client* const session : {&in_journal, &in_row, &ended}) {
      REQUIRE(commit_one(*storage, [&](Writes& to) { session->create(to); }) ==
              SessionError::kNone);
      REQUIRE(session->open(*storage) == SessionError::kNone);
      REQUIRE(commit_one(*storage, [&](Writes& to) { session->begin(to, "call"); }) ==
              SessionError::kNone);
    }
    REQUIRE(commit_one(*storage, [&](Writes& to) { in_row.release(to); }) == SessionError::kNone);
    REQUIRE(commit_one(*storage, [&](Writes& to) { ended.end(to); }) == SessionError::kNone);
    CHECK(storage->health().interrupted == 0);  // they were not found
  }
  const auto storage = store.open();
  CHECK(storage->health().interrupted == 2);
  CHECK(storage->open("row", "alice", nullptr).row.call == "call");
}

// A record of the journal that is not what was written: its session is set aside with all its
// records, the others are there, now and when the store is opened again.
TEST_CASE("a session with a damaged record is quarantined, alone and for good") {
  OnDisk store;
  Client a("a"), b("b");
  {
    const auto storage = store.open();
    for (Client* const session : {&a, &b}) {
      REQUIRE(commit_one(*storage, [&](Writes& to) { session->create(to); }) ==
              SessionError::kNone);
      REQUIRE(session->open(*storage) == SessionError::kNone);
      const std::vector<std::int32_t> tokens = {1, 2, 3};
      REQUIRE(commit_one(*storage, [&](Writes& to) { session->append(to, tokens); }) ==
              SessionError::kNone);
    }
  }
  const auto [sql, what] = GENERATE(
      std::make_pair("UPDATE journal SET body=body||x'00' WHERE seq=2", "values"),
      std::make_pair("UPDATE journal SET body=x'' WHERE seq=2", "all of it"),
      std::make_pair("UPDATE journal SET hash=hash+1 WHERE seq=1", "its creation"),
      std::make_pair("UPDATE journal SET body=(SELECT body FROM journal WHERE seq=4) WHERE seq=2",
                     "another's record"));
  CAPTURE(what);
  store.run_sql(sql);
  for (int opened = 0; opened < 3; ++opened) {
    CAPTURE(opened);
    const auto storage = store.open();
    CHECK(storage->health().quarantined >= 1);
    CHECK(a.open(*storage) == SessionError::kDamaged);
    CHECK(commit_one(*storage, [&](Writes& to) { Client(a).release(to); }) ==
          SessionError::kDamaged);
    if (std::string(what) != "another's record") CHECK(b.difference(*storage) == "");
  }
  store.run_sql("SELECT 1/(count(*)>1) FROM quarantine WHERE sid=x'61'");
}

TEST_CASE("a journal with missing records is not opened") {
  OnDisk store;
  {
    const auto storage = store.open();
    for (const char* const id : {"a", "b", "c"}) {
      Client session(id);
      REQUIRE(commit_one(*storage, [&](Writes& to) { session.create(to); }) == SessionError::kNone);
    }
  }
  const char* const missing = "records of the journal are missing";
  const char* expected = "which were acknowledged up to 3, are lost";
  SECTION("in its middle") {
    store.run_sql("DELETE FROM journal WHERE seq=2");
    expected = missing;
  }
  SECTION("at its end") { store.run_sql("DELETE FROM journal WHERE seq=3"); }
  SECTION("all of them") { store.run_sql("DELETE FROM journal"); }
  CHECK_THAT(store.error(), Catch::Contains(expected));
  // The database knows by itself how far it went when its log was last moved into it.
  std::filesystem::remove(store.options.directory / "acknowledged");
  CHECK_THAT(store.error(), Catch::Contains(missing));
}

TEST_CASE("the journal is folded before it grows beyond its limit") {
  OnDisk store;
  store.options.journal_bytes = 50'000;
  store.options.commit_interval = {};
  const auto storage = store.open();
  std::vector<Client> sessions;
  for (int i = 0; i < 20; ++i) {
    sessions.emplace_back("session " + std::to_string(i));
    REQUIRE(commit_one(*storage, [&](Writes& to) { sessions.back().create(to); }) ==
            SessionError::kNone);
    REQUIRE(sessions.back().open(*storage) == SessionError::kNone);
  }
  std::size_t most = 0;
  for (int round = 0; round < 100; ++round) {
    Writes writes;
    for (Client& session : sessions) {
      session.append(writes, std::vector<std::int32_t>(8, round));
    }
    REQUIRE(writes.commit_to(*storage) == std::vector(sessions.size(), SessionError::kNone));
    most = std::max(most, storage->health().journal_bytes);
  }
  CHECK(most > 40'000);
  CHECK(most < 60'000);
  Writes writes;
  for (Client& session : sessions) session.release(writes);
  writes.commit_to(*storage);
  CHECK(storage->health().journal_bytes < 1000);  // all is in rows
  for (const Client& session : sessions) CHECK(session.difference(*storage) == "");
}

TEST_CASE("writes that come while another is committed are one transaction") {
  DiskStorages storages;
  TestDisk disk;
  const auto storage = storages.open(disk);
  Client first("first");
  REQUIRE(commit_one(*storage, [&](Writes& to) { first.create(to); }) == SessionError::kNone);
  const std::uint64_t before = storage->health().commits;
  // The writer is kept in one commit until the others are queued.
  std::promise<void> go_on;
  std::shared_future<void> may_go_on = go_on.get_future().share();
  std::promise<void> began;
  Writes one;
  Client blocker("blocker");
  blocker.create(one);
  one.commit_to(*storage, [&](std::span<const SessionError>) {
    began.set_value();
    may_go_on.wait();
  });
  began.get_future().wait();
  std::vector<Writes> writes(50);
  std::vector<std::promise<SessionError>> result(50);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    Client session("session " + std::to_string(i));
    session.create(writes[i]);
    writes[i].commit_to(*storage, [&result, i](std::span<const SessionError> outcomes) {
      result[i].set_value(outcomes.front());
    });
  }
  CHECK(storage->health().queued_bytes > 50 * sizeof(SessionStorage::Write));
  go_on.set_value();
  for (auto& each : result) CHECK(each.get_future().get() == SessionError::kNone);
  CHECK(storage->health().commits == before + 2);
}

TEST_CASE("more than the queue holds is refused at once") {
  OnDisk store;
  store.options.queue_bytes = 10'000;
  const auto storage = store.open();
  std::promise<void> go_on;
  std::shared_future<void> may_go_on = go_on.get_future().share();
  std::promise<void> began;
  Writes blocking, large, small;
  Client a("a"), b("b"), c("c");
  a.create(blocking);
  blocking.commit_to(*storage, [&](std::span<const SessionError>) {
    began.set_value();
    may_go_on.wait();
  });
  began.get_future().wait();
  b.row.marks.assign(20'000, 'm');
  b.create(large);
  c.create(small);
  std::promise<SessionError> result;
  small.commit_to(*storage, [&](std::span<const SessionError> outcomes) {
    result.set_value(outcomes.front());
  });
  CHECK(large.commit_to(*storage).front() == SessionError::kStoreAway);
  go_on.set_value();
  CHECK(result.get_future().get() == SessionError::kNone);
  CHECK(large.commit_to(*storage).front() == SessionError::kNone);  // alone it is let in
}

TEST_CASE("closing a storage commits its queue") {
  OnDisk store;
  store.options.commit_interval = std::chrono::hours(1);
  std::vector<Writes> writes(3);
  int done = 0;
  {
    const auto storage = store.open();
    for (int i = 0; i < 3; ++i) {
      // Writes more than one session, so that the next commit would be in an hour.
      for (const char* const name : {"a", "b"}) Client(name + std::to_string(i)).create(writes[i]);
      writes[i].commit_to(*storage, [&](std::span<const SessionError>) { ++done; });
    }
  }
  CHECK(done == 3);
  CHECK(store.open()->list("digits", "", 10, {}).size() == 6);
}

TEST_CASE("a state that begins a history is on the disk before that is acknowledged") {
  DiskStorages storages;
  TestDisk disk;
  std::mt19937_64 random(1);
  const auto storage = storages.open(disk);
  Client a("a");
  REQUIRE(commit_one(*storage, [&](Writes& to) { a.create(to); }) == SessionError::kNone);
  REQUIRE(a.open(*storage) == SessionError::kNone);
  const std::vector<std::int32_t> tokens(100, 1);
  REQUIRE(commit_one(*storage, [&](Writes& to) { a.append(to, tokens); }) == SessionError::kNone);
  SessionStorage::StateRef ref;
  ref.position = 50;
  REQUIRE(storage->put_state("a", state_of(1), &ref) == SessionError::kNone);
  REQUIRE(commit_one(*storage, [&](Writes& to) { a.states(to, {ref}); }) == SessionError::kNone);
  const auto is_on_disk = [&] {
    TestDisk left(disk.after_power_loss(TestDisk::Loss::kAll, random));
    std::string path;
    for (const auto& [file, bytes] : disk.now()) {
      if (file.ends_with(".slab")) path = file;
    }
    StateSlab slab(left.opener()(path), StateSlab::slot_bytes_for(ref.bytes), 1 << 20);
    std::vector<std::byte> state(ref.bytes);
    return slab.read({ref.where, ref.checksum}, ref.position, state);
  };
  CHECK(!is_on_disk());  // a cache so far
  REQUIRE(commit_one(*storage, [&](Writes& to) { a.states(to, {ref}, 50); }) ==
          SessionError::kNone);
  CHECK(is_on_disk());
}

}  // namespace
}  // namespace lintel::testing
