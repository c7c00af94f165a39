// A disk that fails, is full, cannot be written, or holds flipped bits.
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/core/threads.h"
#include "tests/server/vault/disk_vault.h"
#include "tests/server/vault/vault_scenario.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

using Fault = TestDisk::Fault;

constexpr int kFaultySteps = 14;
constexpr std::uint64_t kFaultySeed = 5;

// What a run left on the disk, and the outcomes that it had received.
struct FaultyRun {
  bool opened = true, broke = false, was_full = false;
  Sessions acknowledged, attempted;
};

FaultyRun run_with(const DiskVaults& vaults, TestDisk& disk,
                   std::function<Fault(std::int64_t)> fault) {
  FaultyRun run;
  disk.on_change(std::move(fault));
  Scenario scenario(kFaultySeed);
  try {
    const auto vault = vaults.open(disk);
    for (int step = 0; step < kFaultySteps; ++step) {
      const VaultOutcome outcome = scenario.step(*vault);
      if (run.broke) CHECK(outcome == VaultOutcome::kBroken);
      if (outcome == VaultOutcome::kBroken && !run.broke) {
        run.broke = true;
        run.attempted = scenario.attempted();
        CHECK(vault->health().state == SessionVault::Health::State::kBroken);
      }
      run.was_full |= outcome == VaultOutcome::kFull;
      CHECK((outcome == VaultOutcome::kDone || outcome == VaultOutcome::kBroken ||
             outcome == VaultOutcome::kFull));
    }
    if (!run.broke && scenario.release(*vault) == VaultOutcome::kBroken) {
      run.broke = true;
      run.attempted = scenario.attempted();
    }
    run.acknowledged = scenario.sessions();
    disk.on_change({});
  } catch (const VaultError&) {
    run.opened = false;
  }
  disk.on_change({});
  return run;
}

// Reopened, from the disk as programs saw it or as it is after a power loss, the vault has what it
// acknowledged; the write in progress is there as a whole or not at all.
void check_recovered(const DiskVaults& vaults, const FaultyRun& run, TestDisk::Content content) {
  TestDisk left(std::move(content));
  const auto vault = vaults.open(left);
  CHECK(vault->health().quarantined == 0);
  const std::string fault = difference(*vault, run.acknowledged, true);
  if (!fault.empty() && run.broke) {
    CAPTURE(fault);
    CHECK(difference(*vault, run.attempted, true) == "");
  } else {
    CHECK(fault == "");
  }
}

std::int64_t changes_of_a_run(const DiskVaults& vaults) {
  TestDisk disk;
  const FaultyRun run = run_with(vaults, disk, {});
  REQUIRE(run.opened);
  REQUIRE(!run.broke);
  return disk.changes();
}

TEST_CASE("an error of any write or sync breaks the vault until it is reopened") {
  const DiskVaults vaults;
  const std::int64_t changes = changes_of_a_run(vaults);
  const bool from_then_on = GENERATE(false, true);  // as of a file system remounted read-only
  const int stride = from_then_on || kSanitized ? 7 : 1;
  std::mt19937_64 random(1);
  int broke = 0;
  for (std::int64_t at = 0; at < changes; at += stride) {
    CAPTURE(from_then_on, at);
    TestDisk disk;
    const FaultyRun run = run_with(vaults, disk, [&](std::int64_t number) {
      return number == at || (from_then_on && number > at) ? Fault::kError : Fault::kNone;
    });
    broke += run.broke ? 1 : 0;
    check_recovered(vaults, run, disk.now());
    check_recovered(vaults, run, disk.after_power_loss(TestDisk::Loss::kAll, random));
    check_recovered(vaults, run, disk.after_power_loss(TestDisk::Loss::kTorn, random));
  }
  CHECK(broke > changes / stride / 2);
}

TEST_CASE("a full disk refuses what does not fit, and accepts writes again when it has room",
          "[threat-59]") {
  const DiskVaults vaults;
  const std::int64_t changes = changes_of_a_run(vaults);
  const std::int64_t for_changes = GENERATE(1, 12, 1000);
  const int stride = kSanitized ? 9 : for_changes == 1 ? 1 : 3;
  std::mt19937_64 random(1);
  int full = 0;
  for (std::int64_t at = 0; at < changes; at += stride) {
    CAPTURE(for_changes, at);
    TestDisk disk;
    const FaultyRun run = run_with(vaults, disk, [&](std::int64_t number) {
      if (number < at || number >= at + for_changes) return Fault::kNone;
      return for_changes > 12 ? Fault::kFull : Fault::kNoRoom;
    });
    full += run.was_full ? 1 : 0;
    check_recovered(vaults, run, disk.now());
    check_recovered(vaults, run, disk.after_power_loss(TestDisk::Loss::kAll, random));
  }
  // What lasts for a moment is over when the commit is tried again.
  const bool lasts = for_changes > 12;
  CHECK((full > changes / stride / 4) == lasts);
}

// A file whose sync throws what no file does.
class ThrowingFile final : public VaultFile {
 public:
  ThrowingFile(std::unique_ptr<VaultFile> file, const std::atomic<bool>& throws)
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
  const std::unique_ptr<VaultFile> file_;
  const std::atomic<bool>& throws_;
};

TEST_CASE("exception in a commit: the vault is broken, and the process continues", "[threat-66]") {
  const DiskVaults vaults;
  TestDisk disk;
  ManualClock clock;
  std::atomic<bool> throws{false};
  SqliteVault::Options options = vaults.options_on(disk);
  options.open_file = [&, open = options.open_file](const std::filesystem::path& path) {
    return std::make_unique<ThrowingFile>(open(path), throws);
  };
  SqliteVault vault(options, clock);
  Client a("a");
  REQUIRE(commit_one(vault, [&](Writes& to) { a.create(to); }) == VaultOutcome::kDone);
  REQUIRE(a.open(vault) == VaultOutcome::kDone);
  const std::vector<std::int32_t> values(50, 1);
  REQUIRE(commit_one(vault, [&](Writes& to) { a.append(to, values); }) == VaultOutcome::kDone);
  SessionVault::StateRef ref{.position = 50};
  REQUIRE(vault.put_state("a", state_of(1), &ref) == VaultOutcome::kDone);
  throws = true;
  CHECK(commit_one(vault, [&](Writes& to) { a.states(to, {ref}, 50); }) == VaultOutcome::kBroken);
  CHECK(vault.health().state == SessionVault::Health::State::kBroken);
  CHECK(commit_one(vault, [&](Writes& to) { a.release(to); }) == VaultOutcome::kBroken);
}

TEST_CASE("exception in a commit's callback: counted, and the next commits are done",
          "[threat-66]") {
  const DiskVaults vaults;
  TestDisk disk;
  const auto vault = vaults.open(disk);
  ThreadFailures& failures = ThreadFailures::of_process();
  const std::uint64_t before = failures.count(ServerThread::kStoreCommits);
  Client a("a"), b("b");
  Writes first;
  a.create(first);
  first.commit_to(*vault,
                  [](std::span<const VaultOutcome>) { throw std::runtime_error("of the test"); });
  CHECK(commit_one(*vault, [&](Writes& to) { b.create(to); }) == VaultOutcome::kDone);
  CHECK(failures.count(ServerThread::kStoreCommits) == before + 1);
  CHECK(vault->find("a", "alice").outcome == VaultOutcome::kDone);
}

// A session on a damaged disk is read correctly or refused.
void check_right_or_refused(SessionVault& vault, const Client& session, int* refused) {
  const SessionVault::Opened opened = vault.open(session.row.id, session.row.owner, nullptr);
  if (opened.outcome != VaultOutcome::kDone) {
    ++*refused;
    CHECK((opened.outcome == VaultOutcome::kCorrupt || opened.outcome == VaultOutcome::kNotFound));
    return;
  }
  CHECK(opened.row == session.row);
  std::vector<std::int32_t> values(session.values.size());
  const VaultOutcome read = vault.read_values(session.row.id, session.row.base, values);
  if (read == VaultOutcome::kDone) {
    CHECK(values == session.values);
  } else {
    ++*refused;
    CHECK(read == VaultOutcome::kCorrupt);
  }
  for (const SessionVault::StateRef& ref : session.row.states) {
    std::vector<std::byte> state(ref.bytes);
    const VaultOutcome outcome = vault.read_state(ref, state);
    if (outcome != VaultOutcome::kDone) ++*refused;
    CHECK((outcome == VaultOutcome::kDone || outcome == VaultOutcome::kCorrupt));
  }
}

TEST_CASE("a flipped bit is refused or does no harm, wherever it is") {
  const DiskVaults vaults;
  TestDisk disk;
  // Without folding all is in the journal, with it in rows.
  const bool folded = GENERATE(false, true);
  SqliteVault::Options options = vaults.options_on(disk);
  options.journal_bytes = folded ? 0 : 1 << 30;
  options.reserve_bytes = 4096;  // where they do no harm
  Scenario scenario(kFaultySeed);
  ManualClock clock;
  {
    SqliteVault vault(options, clock);
    for (int step = 0; step < kFaultySteps; ++step) {
      REQUIRE(scenario.step(vault) == VaultOutcome::kDone);
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
        SqliteVault vault(options, clock);
        for (const auto& [id, session] : scenario.sessions()) {
          check_right_or_refused(vault, session, &refused);
        }
        for (const SessionVault::Row& row : vault.list("digits", "", 1000, {})) {
          CHECK(row == scenario.sessions().at(row.id).row);
        }
      } catch (const VaultError&) {
        ++refused;
      }
    }
  }
  CHECK(flips > 400 * 64 / static_cast<int>(stride));
  CHECK(refused > flips / 20);
}

}  // namespace
}  // namespace lintel::testing
