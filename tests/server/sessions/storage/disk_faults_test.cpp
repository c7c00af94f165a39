// SPDX-License-Identifier: Apache-2.0
// A disk that fails, is full, cannot be written, or holds flipped bits.
#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/core/threads.h"
#include "tests/server/sessions/storage/disk_storage.h"
#include "tests/server/sessions/storage/storage_scenario.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

using Fault = TestDisk::Fault;

constexpr int kFaultySteps = 14;
constexpr std::uint64_t kFaultySeed = 5;

// The files that a run left on the disk, and the outcomes that it had received.
struct FaultyRun {
  bool opened = true, broke = false, was_full = false;
  Sessions acknowledged, attempted;
};

FaultyRun run_with(const DiskStorages& storages, TestDisk& disk,
                   std::function<Fault(std::int64_t)> fault) {
  FaultyRun run;
  disk.on_change(std::move(fault));
  Scenario scenario(kFaultySeed);
  try {
    const auto storage = storages.open(disk);
    for (int step = 0; step < kFaultySteps; ++step) {
      const SessionError outcome = scenario.step(*storage);
      if (run.broke) CHECK(outcome == SessionError::kStoreBroken);
      if (outcome == SessionError::kStoreBroken && !run.broke) {
        run.broke = true;
        run.attempted = scenario.attempted();
        CHECK(storage->health().state == SessionStorage::Health::State::kBroken);
      }
      run.was_full |= outcome == SessionError::kStoreFull;
      CHECK((outcome == SessionError::kNone || outcome == SessionError::kStoreBroken ||
             outcome == SessionError::kStoreFull));
    }
    if (!run.broke && scenario.release(*storage) == SessionError::kStoreBroken) {
      run.broke = true;
      run.attempted = scenario.attempted();
    }
    run.acknowledged = scenario.sessions();
    disk.on_change({});
  } catch (const StorageError&) {
    run.opened = false;
  }
  disk.on_change({});
  return run;
}

// Reopened, from the disk as programs saw it or as it is after a power loss, the storage has what
// it acknowledged; the write in progress is there as a whole or not at all.
void check_recovered(const DiskStorages& storages, const FaultyRun& run,
                     TestDisk::Content content) {
  TestDisk left(std::move(content));
  const auto storage = storages.open(left);
  CHECK(storage->health().quarantined == 0);
  const std::string fault = difference(*storage, run.acknowledged, true);
  if (!fault.empty() && run.broke) {
    CAPTURE(fault);
    CHECK(difference(*storage, run.attempted, true) == "");
  } else {
    CHECK(fault == "");
  }
}

std::int64_t changes_of_a_run(const DiskStorages& storages) {
  TestDisk disk;
  const FaultyRun run = run_with(storages, disk, {});
  REQUIRE(run.opened);
  REQUIRE(!run.broke);
  return disk.changes();
}

TEST_CASE("an error of any write or sync breaks the storage until it is reopened") {
  const DiskStorages storages;
  const std::int64_t changes = changes_of_a_run(storages);
  const bool from_then_on = GENERATE(false, true);  // as of a file system remounted read-only
  const int stride = (from_then_on || kSanitized ? 7 : 1) * (runs_every_case() ? 1 : 3);
  std::mt19937_64 random(1);
  int broke = 0;
  for (std::int64_t at =
           static_cast<std::int64_t>(case_seed() % static_cast<std::uint64_t>(stride));
       at < changes; at += stride) {
    CAPTURE(from_then_on, at);
    TestDisk disk;
    const FaultyRun run = run_with(storages, disk, [&](std::int64_t number) {
      return number == at || (from_then_on && number > at) ? Fault::kError : Fault::kNone;
    });
    broke += run.broke ? 1 : 0;
    check_recovered(storages, run, disk.now());
    check_recovered(storages, run, disk.after_power_loss(TestDisk::Loss::kAll, random));
    check_recovered(storages, run, disk.after_power_loss(TestDisk::Loss::kTorn, random));
  }
  CHECK(broke > changes / stride / 2);
}

TEST_CASE("a full disk refuses writes that do not fit, and accepts writes again when it has room",
          "[threat-59]") {
  const DiskStorages storages;
  const std::int64_t changes = changes_of_a_run(storages);
  const std::int64_t for_changes = GENERATE(1, 12, 1000);
  const int stride = (kSanitized ? 9 : for_changes == 1 ? 1 : 3) * (runs_every_case() ? 1 : 3);
  std::mt19937_64 random(1);
  int full = 0;
  for (std::int64_t at =
           static_cast<std::int64_t>(case_seed() % static_cast<std::uint64_t>(stride));
       at < changes; at += stride) {
    CAPTURE(for_changes, at);
    TestDisk disk;
    const FaultyRun run = run_with(storages, disk, [&](std::int64_t number) {
      if (number < at || number >= at + for_changes) return Fault::kNone;
      return for_changes > 12 ? Fault::kFull : Fault::kNoSpace;
    });
    full += run.was_full ? 1 : 0;
    check_recovered(storages, run, disk.now());
    check_recovered(storages, run, disk.after_power_loss(TestDisk::Loss::kAll, random));
  }
  // A fault that lasts for a moment is over when the commit is tried again.
  const bool lasts = for_changes > 12;
  CHECK((full > changes / stride / 4) == lasts);
}

// A file whose sync throws what no file does.
class ThrowingFile final : public StorageFile {
 public:
  ThrowingFile(std::unique_ptr<StorageFile> file, const std::atomic<bool>& throws)
      : file_(std::move(file)), throws_(throws) {}
  void write(std::uint64_t offset, std::span<const std::byte> head,
             std::span<const std::byte> body) override {
    file_->write(offset, head, body);
  }
  std::size_t read(std::uint64_t offset, std::span<std::byte> head,
                   std::span<std::byte> body) override {
    return file_->read(offset, head, body);
  }
  void sync() override {
    if (throws_) throw std::logic_error("of the test");
    file_->sync();
  }
  void punch(std::uint64_t offset, std::uint64_t bytes) override { file_->punch(offset, bytes); }
  bool has_data(std::uint64_t offset, std::uint64_t bytes) override {
    return file_->has_data(offset, bytes);
  }
  bool give_back(std::uint64_t offset, std::uint64_t bytes) override {
    return file_->give_back(offset, bytes);
  }
  void cut(std::uint64_t bytes) override { file_->cut(bytes); }

 private:
  const std::unique_ptr<StorageFile> file_;
  const std::atomic<bool>& throws_;
};

TEST_CASE("exception in a commit: the storage is broken, and the process continues",
          "[threat-66]") {
  const DiskStorages storages;
  TestDisk disk;
  ManualClock clock;
  std::atomic<bool> throws{false};
  SqliteStorage::Options options = storages.options_on(disk);
  options.open_file = [&, open = options.open_file](const std::filesystem::path& path) {
    return std::make_unique<ThrowingFile>(open(path), throws);
  };
  SqliteStorage storage(options, clock);
  Client a("a");
  REQUIRE(commit_one(storage, [&](Writes& to) { a.create(to); }) == SessionError::kNone);
  REQUIRE(a.open(storage) == SessionError::kNone);
  const std::vector<std::int32_t> tokens(50, 1);
  REQUIRE(commit_one(storage, [&](Writes& to) { a.append(to, tokens); }) == SessionError::kNone);
  SessionStorage::StateRef ref{.position = 50};
  REQUIRE(storage.put_state("a", state_of(1), &ref) == SessionError::kNone);
  throws = true;
  CHECK(commit_one(storage, [&](Writes& to) { a.states(to, {ref}, 50); }) ==
        SessionError::kStoreBroken);
  CHECK(storage.health().state == SessionStorage::Health::State::kBroken);
  CHECK(commit_one(storage, [&](Writes& to) { a.release(to); }) == SessionError::kStoreBroken);
}

TEST_CASE("exception in a commit's callback: counted, and the next commits are done",
          "[threat-66]") {
  const DiskStorages storages;
  TestDisk disk;
  const auto storage = storages.open(disk);
  ThreadFailures& failures = ThreadFailures::of_process();
  const std::uint64_t before = failures.count(ServerThread::kStoreCommits);
  Client a("a"), b("b");
  Writes first;
  a.create(first);
  first.commit_to(*storage,
                  [](std::span<const SessionError>) { throw std::runtime_error("of the test"); });
  CHECK(commit_one(*storage, [&](Writes& to) { b.create(to); }) == SessionError::kNone);
  CHECK(failures.count(ServerThread::kStoreCommits) == before + 1);
  CHECK(storage->find("a", "alice").outcome == SessionError::kNone);
}

// A session on a damaged disk is read correctly or refused.
void check_right_or_refused(SessionStorage& storage, const Client& session, int* refused) {
  const SessionStorage::Opened opened = storage.open(session.row.id, session.row.owner, nullptr);
  if (opened.outcome != SessionError::kNone) {
    ++*refused;
    CHECK((opened.outcome == SessionError::kDamaged || opened.outcome == SessionError::kNotFound));
    return;
  }
  CHECK(opened.row == session.row);
  std::vector<std::int32_t> tokens(session.tokens.size());
  const SessionError read = storage.read_tokens(session.row.id, session.row.base, tokens);
  if (read == SessionError::kNone) {
    CHECK(tokens == session.tokens);
  } else {
    ++*refused;
    CHECK(read == SessionError::kDamaged);
  }
  for (const SessionStorage::StateRef& ref : session.row.states) {
    std::vector<std::byte> state(ref.bytes);
    const SessionError outcome = storage.read_state(ref, state);
    if (outcome != SessionError::kNone) ++*refused;
    CHECK((outcome == SessionError::kNone || outcome == SessionError::kDamaged));
  }
}

TEST_CASE("a flipped bit is refused or does no harm, wherever it is") {
  const DiskStorages storages;
  TestDisk disk;
  // Without folding all is in the journal, with it in rows.
  const bool folded = GENERATE(false, true);
  SqliteStorage::Options options = storages.options_on(disk);
  options.journal_bytes = folded ? 0 : 1 << 30;
  options.reserve_bytes = 4096;  // they do no harm there
  Scenario scenario(kFaultySeed);
  ManualClock clock;
  {
    SqliteStorage storage(options, clock);
    for (int step = 0; step < kFaultySteps; ++step) {
      REQUIRE(scenario.step(storage) == SessionError::kNone);
    }
  }
  int refused = 0, flips = 0;
  const TestDisk::Content whole = disk.now();
  const std::size_t stride = kSanitized ? 64 * 23 : 64;
  for (const auto& [path, bytes] : whole) {
    for (std::size_t at = 0; at < bytes.size(); at += stride, ++flips) {
      CAPTURE(folded, path, at);
      TestDisk::Content content = whole;
      content[path][at + at / 64 % 64 % (bytes.size() - at)] ^= std::byte{1} << (at / 64 % 8);
      TestDisk damaged(std::move(content));
      options.sqlite_vfs = damaged.vfs();
      options.open_file = damaged.opener();
      try {
        SqliteStorage storage(options, clock);
        for (const auto& [id, session] : scenario.sessions()) {
          check_right_or_refused(storage, session, &refused);
        }
        for (const SessionStorage::Row& row : storage.list("digits", "", 1000, {})) {
          CHECK(row == scenario.sessions().at(row.id).row);
        }
      } catch (const StorageError&) {
        ++refused;
      }
    }
  }
  CHECK(flips > 400 * 64 / static_cast<int>(stride));
  CHECK(refused > flips / 20);
}

}  // namespace
}  // namespace lintel::testing
