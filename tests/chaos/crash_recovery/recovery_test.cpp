// SPDX-License-Identifier: Apache-2.0
// How long a server with many sessions takes to begin again after it was killed. A clock says
// little on a machine that others use, too: what is measured is held against reading the same
// records.
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "tests/server/sessions/storage/storage_calls.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSessions = kSanitized ? 1000 : 10'000;
constexpr int kInterrupted = 64;
constexpr int kRounds = 5;

template <typename Work>
double milliseconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

SqliteStorage::Options options_in(const fs::path& directory) {
  SqliteStorage::Options options;
  options.directory = directory;
  return options;
}

// Copies the files that a process leaves behind if it is killed now.
void copy_files(const fs::path& from, const fs::path& to) {
  fs::remove_all(to);
  fs::create_directory(to);
  for (const fs::directory_entry& file : fs::directory_iterator(from)) {
    fs::copy_file(file.path(), to / file.path().filename());
  }
}

// Has SQLite read each record of the journal.
void read_journal(const fs::path& directory) {
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open((directory / "sessions.db").c_str(), &database) == SQLITE_OK);
  sqlite3_stmt* statement = nullptr;
  REQUIRE(sqlite3_prepare_v2(database, "SELECT body FROM journal", -1, &statement, nullptr) ==
          SQLITE_OK);
  int records = 0;
  std::vector<char> body;
  while (sqlite3_step(statement) == SQLITE_ROW) {
    const auto* const bytes = static_cast<const char*>(sqlite3_column_blob(statement, 0));
    body.assign(bytes, bytes + sqlite3_column_bytes(statement, 0));
    ++records;
  }
  sqlite3_finalize(statement);
  sqlite3_close(database);
  CHECK(records == kSessions + kInterrupted);
}

TEST_CASE("a store of many sessions opens in the time of reading it a few times") {
  const TemporaryDirectory files;
  const fs::path living = files.path() / "living", dead = files.path() / "dead";
  const SteadyClock clock;
  SqliteStorage storage(options_in(living), clock);
  std::vector<Client> sessions;
  Writes made, begins;
  for (int i = 0; i < kSessions; ++i) {
    Client& session =
        sessions.emplace_back("0123456789abcdef012345" + std::to_string(1'000'000 + i));
    session.tokens.assign(784, i % 256);
    session.row.position = 784;
    session.create(made);
  }
  REQUIRE(made.commit_to(storage).back() == SessionError::kNone);
  for (int i = 0; i < kInterrupted; ++i) {
    Client& session = sessions[static_cast<std::size_t>(i)];
    REQUIRE(session.open(storage) == SessionError::kNone);
    session.begin(begins, "a call");
  }
  REQUIRE(begins.commit_to(storage).back() == SessionError::kNone);

  // The least of some rounds: what others took of the machine is not in it.
  double read = 1e9, opened = 1e9, of_empty = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    copy_files(living, dead);
    read = std::min(read, milliseconds_of([&] { read_journal(dead); }));
    copy_files(living, dead);
    {
      std::optional<SqliteStorage> again;
      opened = std::min(opened, milliseconds_of([&] { again.emplace(options_in(dead), clock); }));
      CHECK(again->health().sessions == kSessions);
      CHECK(again->health().interrupted == kInterrupted);
    }
    const fs::path empty = files.path() / "empty";
    { const SqliteStorage created(options_in(empty), clock); }
    of_empty =
        std::min(of_empty, milliseconds_of([&] { SqliteStorage(options_in(empty), clock); }));
  }
  CAPTURE(read, opened, of_empty);
  constexpr double kTimes = 12;  // as much as reading the records
  CHECK(opened - of_empty <= kTimes * read);
}

}  // namespace
}  // namespace lintel::testing
