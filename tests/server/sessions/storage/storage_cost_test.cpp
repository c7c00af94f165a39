// SPDX-License-Identifier: Apache-2.0
// What a storage costs. Hidden: storage_test '[cost]' prints it; what is checked is generous.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "server/sessions/storage/sqlite/sqlite_schema.h"
#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_calls.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Seconds = std::chrono::duration<double>;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// 64 sessions that take 4 tokens in each commit.
double commits_of_64(SessionStorage& storage, int commits, std::vector<double>* seconds) {
  std::vector<Client> sessions;
  Writes made;
  for (int i = 0; i < 64; ++i) {
    sessions.emplace_back("0123456789abcdef0123456789abcd" + std::to_string(10 + i));
    sessions.back().create(made);
  }
  made.commit_to(storage);
  for (Client& session : sessions) REQUIRE(session.open(storage) == SessionError::kNone);
  const std::vector<std::int32_t> tokens = {1, 200, 3, 40};
  double cpu = 0;
  for (int i = 0; i < commits; ++i) {
    Writes writes;
    for (Client& session : sessions) session.append(writes, tokens);
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(writes.commit_to(storage).back() == SessionError::kNone);
    seconds->push_back(Seconds(std::chrono::steady_clock::now() - start).count());
    cpu += cpu_seconds() - cpu_before;
  }
  std::ranges::sort(*seconds);
  return cpu / commits;
}

TEST_CASE("cost of a commit of 64 sessions", "[.][cost]") {
  const TemporaryDirectory directory;
  const SteadyClock clock;
  SqliteStorage::Options options;
  options.directory = directory.path();
  options.commit_interval = {};
  std::vector<double> seconds;
  double cpu = 0;
  {
    SqliteStorage storage(options, clock);
    cpu = commits_of_64(storage, 1000, &seconds);
  }
  DiskStorages storages;
  TestDisk disk;
  options = storages.options_on(disk);
  options.journal_bytes = SqliteStorage::Options().journal_bytes;
  options.log_bytes = SqliteStorage::Options().log_bytes;
  std::vector<double> in_memory;
  SqliteStorage storage(options, clock);
  const std::int64_t before = disk.bytes_written();
  commits_of_64(storage, 2000, &in_memory);
  std::printf(
      "a commit of 64 x 4 tokens: p50 %.0f us, p99 %.0f us, CPU %.0f us, %.0f bytes written\n",
      1e6 * seconds[500], 1e6 * seconds[990], 1e6 * cpu,
      static_cast<double>(disk.bytes_written() - before) / 2000);
}

TEST_CASE("cost of releasing a slot, and how long it blocks other calls", "[.][cost]") {
  const TemporaryDirectory directory;
  const SteadyClock clock;
  SqliteStorage::Options options;
  options.directory = directory.path();
  options.commit_interval = {};
  SqliteStorage storage(options, clock);
  constexpr int kSessions = 64;
  const std::vector<std::byte> state = state_of(1, 271'360);
  std::vector<Client> sessions;
  Writes made;
  for (int i = 0; i < kSessions; ++i) {
    sessions.emplace_back("session " + std::to_string(i));
    sessions.back().create(made);
  }
  made.commit_to(storage);
  Writes named;
  for (Client& session : sessions) {
    REQUIRE(session.open(storage) == SessionError::kNone);
    SessionStorage::StateRef ref;
    REQUIRE(storage.put_state(session.row.id, state, &ref) == SessionError::kNone);
    session.states(named, {ref});
  }
  REQUIRE(named.commit_to(storage).back() == SessionError::kNone);
  storage.sync_states();
  // All of them at once, while another thread looks for a session.
  std::atomic<bool> done{false};
  double longest = 0;
  std::thread looking([&] {
    while (!done) {
      const auto start = std::chrono::steady_clock::now();
      storage.open("missing", "alice", nullptr);
      longest = std::max(longest, Seconds(std::chrono::steady_clock::now() - start).count());
    }
  });
  Writes removed;
  for (Client& session : sessions) session.remove(removed);
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(removed.commit_to(storage).back() == SessionError::kNone);
  const double all = Seconds(std::chrono::steady_clock::now() - start).count();
  done = true;
  looking.join();
  std::printf("%d sessions with states removed in %.1f ms, a look-up meanwhile %.1f ms at most\n",
              kSessions, 1e3 * all, 1e3 * longest);
}

TEST_CASE("cost of opening a store of many sessions", "[.][cost]") {
  const int rows = GENERATE(10'000, 1'000'000);
  const bool with_states = GENERATE(false, true);
  const TemporaryDirectory directory;
  const SteadyClock clock;
  SqliteStorage::Options options;
  options.directory = directory.path();
  {
    StorageDirectory made(options.directory);
    SqliteConnection connection(made.database(), "");
    SqliteSchema schema(connection);
    connection.run("PRAGMA synchronous=OFF; BEGIN");
    for (int i = 0; i < rows; ++i) {
      Client session("0123456789abcdef01234567" + std::to_string(10'000'000 + i));
      session.row.position = 784;
      session.tokens.assign(784, 255);
      if (with_states) {
        session.row.states = {
            {.position = 784, .where = static_cast<std::uint64_t>(i), .bytes = 271'360}};
      }
      SessionStorage::Write write{.kind = Kind::kCreate, .after = session.row.digest};
      write.id = session.row.id;
      const StorageBytes body = encode_new_session({session.row, session.tokens});
      write.body = body;
      schema.store(*StorageSession::created(write), 0, {});
      if (i % 10'000 == 9999) {
        connection.run("COMMIT");
        connection.checkpoint();
        connection.run("BEGIN");
      }
    }
    connection.run("COMMIT");
  }
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    SqliteStorage storage(options, clock);
    const double open = Seconds(std::chrono::steady_clock::now() - start).count();
    const auto found = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) {
      const std::string id =
          "0123456789abcdef01234567" + std::to_string(10'000'000 + i * 7919LL % rows);
      REQUIRE(storage.open(id, "alice", nullptr).outcome == SessionError::kNone);
    }
    const double look_up = Seconds(std::chrono::steady_clock::now() - found).count() / 1000;
    std::printf(
        "%d sessions%s: open %.1f ms, a look-up %.1f us, %.0f bytes each\n", rows,
        with_states ? " with states" : "", 1e3 * open, 1e6 * look_up,
        static_cast<double>(std::filesystem::file_size(options.directory / "sessions.db")) / rows);
    CHECK(open <= 0.5);
  }
}

}  // namespace
}  // namespace lintel::testing
