// SPDX-License-Identifier: Apache-2.0
// Documents on a disk without room, or that fails: what is refused, and what always works.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/sessions/storage/sqlite/sqlite_documents.h"
#include "tests/server/sessions/storage/test_disk.h"
#include "tests/support/catch.h"
#include "tests/support/manual_clock.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;
using Fault = TestDisk::Fault;
using State = DocumentStorage::Health::State;

constexpr std::size_t kSmall = 40'000, kLarge = 400'000;
constexpr std::size_t kReserve = std::size_t{1280} << 10;
constexpr std::int64_t kCapacity = std::int64_t{5} << 20;

struct DocumentDisk {
  SqliteDocuments::Options options() {
    SqliteDocuments::Options options;
    options.log_bytes = std::size_t{768} << 10;
    options.reserve_bytes = kReserve;
    options.piece_bytes = std::size_t{128} << 10;
    options.sqlite_vfs = disk.vfs();
    options.open_file = disk.opener();
    return options;
  }
  void open() {
    storage.reset();
    storage = std::make_unique<SqliteDocuments>(directory.path(), clock, options());
  }
  Outcome put(const std::string& id, std::size_t bytes, const std::string& parent = "") {
    Document made{.id = id, .owner = "", .parent = parent, .body = std::string(bytes, 'x')};
    made.expires = clock.wall_time() + std::chrono::hours(1);
    return storage->put(made);
  }
  Outcome find(const std::string& id) {
    Document found;
    return storage->find(id, "", std::nullopt, found);
  }
  // Stores documents until one finds no room. Returns those that were stored.
  std::vector<std::string> fill(const std::string& name, std::size_t bytes) {
    std::vector<std::string> ids;
    for (int i = 0; i < 5000; ++i) {
      const std::string id = name + std::to_string(i);
      const Outcome outcome = put(id, bytes);
      if (outcome == Outcome::kNone) {
        ids.push_back(id);
        continue;
      }
      CHECK(outcome == Outcome::kStoreFull);
      CHECK(find(id) == Outcome::kNotFound);  // it left no trace
      return ids;
    }
    FAIL("the disk is never full");
    return ids;
  }
  void sweep() {
    for (int i = 0; i < 100; ++i) storage->sweep(256);
  }

  explicit DocumentDisk(TestDisk::Content content = {}) : disk(std::move(content)) {}

  const TemporaryDirectory directory;
  ManualClock clock;
  TestDisk disk;
  std::unique_ptr<SqliteDocuments> storage;
};

TEST_CASE("documents on a full disk: each can be removed, and new ones find room again",
          "[threat-59]") {
  const std::size_t bytes = GENERATE(kSmall, kLarge);
  const bool reopens = GENERATE(false, true);
  CAPTURE(bytes, reopens);
  DocumentDisk f;
  f.disk.set_capacity(kCapacity);
  f.open();
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    const std::vector<std::string> ids = f.fill(std::to_string(round) + "-", bytes);
    REQUIRE(ids.size() * bytes > kReserve);
    CHECK(f.storage->health().state == State::kFull);
    if (reopens) f.open();
    for (const std::string& id : ids) {
      CAPTURE(id);
      CHECK(f.find(id) == Outcome::kNone);
      CHECK(f.storage->remove(id, "") == Outcome::kNone);
      CHECK(f.find(id) == Outcome::kNotFound);
    }
    f.sweep();
    CHECK(f.put("again" + std::to_string(round), bytes) == Outcome::kNone);
    CHECK(f.storage->health().state == State::kOk);
    CHECK(f.storage->remove("again" + std::to_string(round), "") == Outcome::kNone);
    f.sweep();
  }
}

TEST_CASE("documents on a full disk: what has expired goes, and new ones find room again",
          "[threat-59]") {
  DocumentDisk f;
  f.disk.set_capacity(kCapacity);
  f.open();
  const std::vector<std::string> small = f.fill("a", kSmall);
  const bool reopens = GENERATE(false, true);
  if (reopens) f.open();
  f.clock.advance(std::chrono::hours(2));
  f.sweep();
  REQUIRE(small.size() > 30);
  CHECK(f.fill("b", kSmall).size() + 10 > small.size());
}

TEST_CASE("documents on a full disk: hidden ones go with the last that continues them") {
  DocumentDisk f;
  f.disk.set_capacity(kCapacity);
  f.open();
  std::string parent;
  std::vector<std::string> chain;
  for (int i = 0; i < 80; ++i) {
    chain.push_back("c" + std::to_string(i));
    REQUIRE(f.put(chain.back(), 10'000, parent) == Outcome::kNone);
    parent = chain.back();
  }
  f.fill("a", kSmall);
  for (const std::string& id : chain) REQUIRE(f.storage->remove(id, "") == Outcome::kNone);
  f.sweep();
  for (const std::string& id : chain) CHECK(f.find(id) == Outcome::kNotFound);
  CHECK(f.fill("b", kSmall).size() > 10);
}

TEST_CASE("documents on a full disk: room that comes back from outside is used") {
  DocumentDisk f;
  f.disk.set_capacity(kCapacity);
  f.open();
  f.fill("a", kSmall);
  f.disk.set_capacity(kCapacity + (std::int64_t{2} << 20));
  CHECK(f.fill("b", kSmall).size() > 40);
}

TEST_CASE("documents: one larger than log and reserve is stored, or leaves no bytes") {
  DocumentDisk f;
  f.open();
  REQUIRE(f.put("a", kSmall) == Outcome::kNone);
  f.disk.set_capacity(f.disk.bytes_in_use() + (std::int64_t{5} << 20));
  CHECK(f.put("b", 3 * kReserve) == Outcome::kStoreFull);
  CHECK(f.put("c", kSmall) == Outcome::kNone);
  f.disk.set_capacity(f.disk.bytes_in_use() + (std::int64_t{20} << 20));
  CHECK(f.put("b", 3 * kReserve) == Outcome::kNone);
  const std::int64_t in_use = f.disk.bytes_in_use();
  f.disk.set_capacity(in_use);
  f.open();
  CHECK(f.find("b") == Outcome::kNone);
  REQUIRE(f.storage->remove("b", "") == Outcome::kNone);
  f.sweep();
  CHECK(f.fill("d", kLarge).size() >= 6);
  CHECK(f.disk.bytes_in_use() <= in_use);
}

TEST_CASE("documents: the bytes of a removed one are overwritten, also of a large one",
          "[threat-11]") {
  const std::string secret = "Only Ada knows where the treasure lies. ";
  DocumentDisk f;
  f.open();
  for (const std::size_t bytes : {kSmall, kLarge}) {
    Document made{.id = std::to_string(bytes), .owner = "", .parent = "", .body = ""};
    while (made.body.size() < bytes) made.body += secret;
    made.expires = f.clock.wall_time() + std::chrono::hours(1);
    REQUIRE(f.storage->put(made) == Outcome::kNone);
  }
  const auto places = [&] {
    int count = 0;
    f.storage.reset();
    for (const auto& [path, bytes] : f.disk.now()) {
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      for (std::size_t at = text.find(secret); at != text.npos; at = text.find(secret, at + 1)) {
        ++count;
      }
    }
    f.open();
    return count;
  };
  REQUIRE(places() > 5'000);
  REQUIRE(f.storage->remove(std::to_string(kSmall), "") == Outcome::kNone);
  REQUIRE(f.storage->remove(std::to_string(kLarge), "") == Outcome::kNone);
  // A new one of the same id does not wait for the rest of the old one.
  CHECK(f.put(std::to_string(kLarge), kSmall) == Outcome::kNone);
  CHECK(f.find(std::to_string(kLarge)) == Outcome::kNone);
  REQUIRE(f.storage->remove(std::to_string(kLarge), "") == Outcome::kNone);
  f.sweep();
  CHECK(places() == 0);
}

TEST_CASE("documents: a large one that was being removed when its server ended is gone") {
  DocumentDisk f;
  f.open();
  REQUIRE(f.put("a", kLarge) == Outcome::kNone);
  REQUIRE(f.storage->remove("a", "") == Outcome::kNone);
  DocumentDisk next(f.disk.now());
  std::int64_t writes = 0;
  next.storage = std::make_unique<SqliteDocuments>(f.directory.path(), next.clock, next.options());
  CHECK(next.find("a") == Outcome::kNotFound);
  // Cut off in the middle of emptying it.
  next.disk.on_change([&](std::int64_t) { return ++writes > 100 ? Fault::kError : Fault::kNone; });
  next.sweep();
  next.disk.on_change({});
  DocumentDisk last(next.disk.now());
  last.storage = std::make_unique<SqliteDocuments>(f.directory.path(), last.clock, last.options());
  CHECK(last.find("a") == Outcome::kNotFound);
  last.sweep();
  CHECK(last.find("a") == Outcome::kNotFound);
  CHECK(last.put("a", kSmall) == Outcome::kNone);
}

// A run with faults: what it was answered.
struct DocumentRun {
  std::set<std::string> there, gone;
  std::string unknown;  // the document that the storage broke at
  bool was_full = false, opened = true;
};

DocumentRun run_with(DocumentDisk& f, std::function<Fault(std::int64_t)> fault) {
  DocumentRun run;
  f.disk.on_change(std::move(fault));
  const auto note = [&](Outcome outcome, const std::string& id, bool removes) {
    if (!run.unknown.empty()) {
      CHECK(outcome == Outcome::kStoreBroken);
      return;
    }
    if (outcome == Outcome::kStoreBroken) {
      run.unknown = id;
    } else if (outcome == Outcome::kStoreFull) {
      run.was_full = true;
    } else {
      CHECK(outcome == Outcome::kNone);
      (removes ? run.gone : run.there).insert(id);
      if (removes) run.there.erase(id);
    }
  };
  try {
    f.open();
    for (int i = 0; i < 20; ++i) {
      const std::string id = "d" + std::to_string(i);
      note(f.put(id, i % 7 == 3 ? 300'000 : 40'000), id, /*removes=*/false);
      if (i % 5 == 4 && run.there.contains("d" + std::to_string(i - 1))) {
        const std::string last = "d" + std::to_string(i - 1);
        note(f.storage->remove(last, ""), last, /*removes=*/true);
      }
    }
    f.storage->sweep(100);
  } catch (const StorageError&) {
    run.opened = false;
  }
  const bool is_broken = f.storage != nullptr && f.storage->health().state == State::kBroken;
  CHECK((run.unknown.empty() || is_broken));
  f.disk.on_change({});
  f.storage.reset();
  return run;
}

void check_left(const DocumentDisk& f, const DocumentRun& run, TestDisk::Content content) {
  DocumentDisk left(std::move(content));
  left.storage = std::make_unique<SqliteDocuments>(f.directory.path(), left.clock, left.options());
  for (int i = 0; i < 20; ++i) {
    const std::string id = "d" + std::to_string(i);
    CAPTURE(id);
    if (id == run.unknown) continue;
    CHECK(left.find(id) == (run.there.contains(id) ? Outcome::kNone : Outcome::kNotFound));
  }
}

std::int64_t changes_of_a_run() {
  DocumentDisk f;
  const DocumentRun run = run_with(f, {});
  REQUIRE(run.unknown.empty());
  REQUIRE_FALSE(run.was_full);
  REQUIRE(run.there.size() == 16);
  return f.disk.changes();
}

TEST_CASE("documents: an error of any write or sync breaks the storage until it is reopened") {
  const std::int64_t changes = changes_of_a_run();
  std::mt19937_64 random(1);
  int broke = 0;
  for (std::int64_t at = 0; at < changes; at += at < 40 ? 1 : kSanitized ? 301 : 97) {
    CAPTURE(at);
    DocumentDisk f;
    const DocumentRun run = run_with(
        f, [&](std::int64_t number) { return number == at ? Fault::kError : Fault::kNone; });
    CHECK_FALSE(run.was_full);  // also where it is the first write
    if (!run.unknown.empty()) ++broke;
    check_left(f, run, f.disk.now());
    check_left(f, run, f.disk.after_power_loss(TestDisk::Loss::kAll, random));
    check_left(f, run, f.disk.after_power_loss(TestDisk::Loss::kTorn, random));
  }
  CHECK(broke > 20);
}

TEST_CASE("documents: what is answered as stored on a full disk is, and what is refused is not") {
  const std::int64_t changes = changes_of_a_run();
  const std::int64_t for_changes = GENERATE(1, 40);
  int full = 0;
  for (std::int64_t at = 0; at < changes; at += at < 40 ? 1 : kSanitized ? 301 : 97) {
    CAPTURE(for_changes, at);
    DocumentDisk f;
    const DocumentRun run = run_with(f, [&](std::int64_t number) {
      return number >= at && number < at + for_changes ? Fault::kFull : Fault::kNone;
    });
    CHECK(run.opened);
    CHECK(run.unknown.empty());
    full += run.was_full ? 1 : 0;
    check_left(f, run, f.disk.now());
  }
  if (for_changes > 1) CHECK(full > 5);
}

}  // namespace
}  // namespace lintel::testing
