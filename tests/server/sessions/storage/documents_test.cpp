// SPDX-License-Identifier: Apache-2.0
// Documents in memory and on a disk: bounds and damage.
#include <sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "server/sessions/storage/document_storage.h"
#include "server/sessions/storage/sqlite/sqlite_documents.h"
#include "server/sessions/storage/sqlite/storage_file.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

SessionError put(DocumentStorage& storage, const Clock& clock, const std::string& id,
                 std::size_t bytes, const std::string& parent = "") {
  Document made{.id = id, .owner = "", .parent = parent, .body = std::string(bytes, 'x')};
  made.expires = clock.wall_time() + std::chrono::hours(1);
  return storage.put(made);
}
SessionError find(DocumentStorage& storage, const std::string& id) {
  Document found;
  return storage.find(id, "", std::nullopt, found);
}

TEST_CASE("documents in memory: the oldest chains make room, from their ends") {
  ManualClock clock;
  MemoryDocuments storage(10'000, clock);
  CHECK(put(storage, clock, "large", 10'001) == SessionError::kStoreFull);
  REQUIRE(put(storage, clock, "a", 2000) == SessionError::kNone);
  clock.advance(std::chrono::seconds(1));
  REQUIRE(put(storage, clock, "b", 2000, "a") == SessionError::kNone);
  clock.advance(std::chrono::seconds(1));
  REQUIRE(put(storage, clock, "c", 2000) == SessionError::kNone);
  clock.advance(std::chrono::seconds(1));
  REQUIRE(put(storage, clock, "d", 2000) == SessionError::kNone);
  CHECK(find(storage, "b") == SessionError::kNotFound);
  CHECK(find(storage, "a") == SessionError::kNone);
  REQUIRE(put(storage, clock, "e", 2000) == SessionError::kNone);
  CHECK(find(storage, "a") == SessionError::kNotFound);
  CHECK(find(storage, "e") == SessionError::kNone);
}

TEST_CASE("documents on a disk: nothing is written before the first one, and only for their user") {
  const TemporaryDirectory directory;
  ManualClock clock;
  const auto file = directory.path() / "documents.db";
  SqliteDocuments storage(directory.path(), clock);
  CHECK(find(storage, "a") == SessionError::kNotFound);
  CHECK(storage.remove("a", "") == SessionError::kNotFound);
  CHECK(storage.sweep(10) == 0);
  CHECK_FALSE(std::filesystem::exists(file));
  REQUIRE(put(storage, clock, "a", 10) == SessionError::kNone);
  DocumentStorage::Secret secret{};
  REQUIRE(storage.secret(secret) == SessionError::kNone);
  for (const char* const name : {"documents.db", "documents.key"}) {
    struct stat found {};
    REQUIRE(::stat((directory.path() / name).c_str(), &found) == 0);
    CHECK((found.st_mode & 0777) == 0600);
  }
}

TEST_CASE("documents on a disk: one that was changed is damaged, the others are there") {
  const TemporaryDirectory directory;
  ManualClock clock;
  {
    SqliteDocuments storage(directory.path(), clock);
    REQUIRE(put(storage, clock, "a", 10) == SessionError::kNone);
    REQUIRE(put(storage, clock, "b", 10) == SessionError::kNone);
  }
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open((directory.path() / "documents.db").c_str(), &database) == SQLITE_OK);
  REQUIRE(sqlite3_exec(database, "UPDATE body SET body=x'79' WHERE id=x'61'", nullptr, nullptr,
                       nullptr) == SQLITE_OK);
  sqlite3_close(database);
  SqliteDocuments storage(directory.path(), clock);
  CHECK(find(storage, "a") == SessionError::kDamaged);
  CHECK(find(storage, "b") == SessionError::kNone);
}

TEST_CASE("documents on a disk: a file of something else is refused by its name") {
  const TemporaryDirectory directory;
  ManualClock clock;
  std::ofstream(directory.path() / "documents.db") << std::string(5000, 'x');
  CHECK_THROWS_WITH(SqliteDocuments(directory.path(), clock), Contains("documents.db"));
}

}  // namespace
}  // namespace lintel::testing
