// SPDX-License-Identifier: Apache-2.0
#include "bench/storage_costs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "bench/sequences.h"
#include "bench/session_costs.h"
#include "model/core/state_bytes.h"
#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel::bench {

// StoredSession: a session as the writer to a storage knows it.

// Writes with the bodies that they point to.
class StorageWrites {
 public:
  void add(SessionStorage::Write write, StorageBytes body);
  // Returns when they are durable. Throws std::runtime_error for one that is refused.
  void commit_to(SessionStorage& storage) const;

 private:
  std::vector<SessionStorage::Write> writes_;
  std::vector<StorageBytes> bodies_;
};

struct StoredSession {
  explicit StoredSession(std::string id, std::vector<std::int32_t> values = {});

  void create(StorageWrites& to);
  void begin(StorageWrites& to);
  void append(StorageWrites& to, std::span<const std::int32_t> values);
  void name_state(StorageWrites& to, const SessionStorage::StateRef& state);
  void open(SessionStorage& storage);  // and remembers the claim

  SessionStorage::Row row;
  std::vector<std::int32_t> values;  // that it is created with
  SessionStorage::Claim claim;

 private:
  SessionStorage::Write write(SessionStorage::Write::Kind kind, const Digest& after);
};

using Kind = SessionStorage::Write::Kind;

void StorageWrites::add(SessionStorage::Write write, StorageBytes body) {
  bodies_.push_back(std::move(body));  // moved along, its bytes stay where they are
  write.body = bodies_.back();
  writes_.push_back(write);
}

void StorageWrites::commit_to(SessionStorage& storage) const {
  std::promise<SessionError> written;
  storage.commit(writes_, [&](std::span<const SessionError> outcomes) {
    SessionError worst = SessionError::kNone;
    for (const SessionError outcome : outcomes) {
      if (outcome != SessionError::kNone) worst = outcome;
    }
    written.set_value(worst);
  });
  const SessionError outcome = written.get_future().get();
  if (outcome != SessionError::kNone) {
    throw std::runtime_error(std::string("the session store refuses a write: ") +
                             to_string(outcome));
  }
}

StoredSession::StoredSession(std::string id, std::vector<std::int32_t> of) : values(std::move(of)) {
  row.id = std::move(id);
  row.owner = "bench";
  row.model = "model";
  row.model_print = row.numerics = std::string(64, '0');
  row.durability = Durability::kInput;
  row.position = static_cast<std::int64_t>(values.size());
  row.created = row.used = std::chrono::system_clock::now();
  row.expires = row.used + std::chrono::hours(24 * 365);
  row.digest = digest_of(std::as_bytes(std::span(row.id)));
}

SessionStorage::Write StoredSession::write(Kind kind, const Digest& after) {
  SessionStorage::Write write{.kind = kind,
                              .id = row.id,
                              .claim = claim,
                              .before = row.digest,
                              .after = after,
                              .position = row.position};
  row.digest = after;
  return write;
}

void StoredSession::create(StorageWrites& to) {
  to.add(write(Kind::kCreate, row.digest), encode_new_session({row, values}));
}

void StoredSession::begin(StorageWrites& to) {
  RowChange change;
  change.call = row.call = "call";
  to.add(write(Kind::kBegin, extend(row.digest, DigestKind::kBegin, {})), encode_change(change));
}

void StoredSession::append(StorageWrites& to, std::span<const std::int32_t> more) {
  row.position += static_cast<std::int64_t>(more.size());
  to.add(write(Kind::kValues, extend(row.digest, DigestKind::kValues, std::as_bytes(more))),
         encode_tokens(more));
}

void StoredSession::name_state(StorageWrites& to, const SessionStorage::StateRef& state) {
  RowChange change;
  change.states = row.states = {state};
  to.add(write(Kind::kState, row.digest), encode_change(change));
}

void StoredSession::open(SessionStorage& storage) {
  const SessionStorage::Opened opened = storage.open(row.id, row.owner, nullptr);
  if (opened.outcome != SessionError::kNone) {
    throw std::runtime_error(std::string("a stored session cannot be opened: ") +
                             to_string(opened.outcome));
  }
  claim = opened.claim;
}

namespace {

namespace fs = std::filesystem;

// Sessions of the design that write side by side, and tokens of each in a commit.
constexpr int kWriters = 64;
constexpr int kTokensOfACommit = 4;
constexpr int kInterrupted = 64;
constexpr std::int64_t kTokensOfASession = 784;

// Blocks of so many bytes in a file of its own: appended, each time onto the disk, and read from
// it.
class PlainFile {
 public:
  PlainFile(const fs::path& path, std::size_t bytes)
      : bytes_(bytes), file_(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), path.string());
  }
  ~PlainFile() { close(file_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  // None of it is in the system's caches.
  void forget() const { posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED); }
  void read(int block, std::span<std::byte> bytes) const {
    if (pread(file_, bytes.data(), bytes_.size(), static_cast<off_t>(bytes_.size()) * block) !=
        static_cast<ssize_t>(bytes_.size())) {
      throw std::system_error(errno, std::generic_category(), "pread");
    }
  }
  void append() const {
    if (write(file_, bytes_.data(), bytes_.size()) != static_cast<ssize_t>(bytes_.size()) ||
        fdatasync(file_) != 0) {
      throw std::system_error(errno, std::generic_category(), "write or fdatasync");
    }
  }

 private:
  const std::vector<std::byte> bytes_;
  const int file_;
};

std::string id_of(int number) {
  char text[33];
  std::snprintf(text, sizeof text, "%032d", number);
  return text;
}

SqliteStorage::Options options_in(const fs::path& directory) {
  SqliteStorage::Options options;
  options.directory = directory;
  options.commit_interval = {};  // what a commit takes, not what it waits for others
  return options;
}

void create_all(SessionStorage& storage, std::vector<StoredSession>& sessions) {
  constexpr std::size_t kOfACommit = 500;
  for (std::size_t at = 0; at < sessions.size(); at += kOfACommit) {
    StorageWrites writes;
    const std::size_t end = std::min(at + kOfACommit, sessions.size());
    for (std::size_t i = at; i < end; ++i) sessions[i].create(writes);
    writes.commit_to(storage);
  }
}

}  // namespace

std::vector<SessionFigure> commit_costs(const StoragePlan& plan) {
  const ScratchDirectory scratch(plan.directory);
  const SteadyClock clock;
  SqliteStorage storage(options_in(scratch.path() / "store"), clock);
  const PlainFile plain(scratch.path() / "plain", kWriters * 40);
  std::vector<StoredSession> sessions;
  for (int i = 0; i < kWriters; ++i) sessions.emplace_back(id_of(i));
  create_all(storage, sessions);
  for (StoredSession& session : sessions) session.open(storage);
  std::vector<std::int32_t> values(kTokensOfACommit);
  std::iota(values.begin(), values.end(), 200);

  Repeats synced, median, slowest;
  for (int r = 0; r < plan.repeats; ++r) {
    std::vector<double> commits, syncs;
    for (int i = 0; i < plan.count; ++i) {
      StorageWrites writes;
      for (StoredSession& session : sessions) session.append(writes, values);
      commits.push_back(microseconds_of(1, [&] { writes.commit_to(storage); })[0]);
      syncs.push_back(microseconds_of(1, [&] { plain.append(); })[0]);
    }
    synced.add(quantile(syncs, 0.5));
    median.add(quantile(commits, 0.5));
    slowest.add(quantile(commits, 0.99));
  }
  const std::string beside =
      "write and fdatasync of 2,560 bytes " + format_number(synced.median(), 3) + " us";
  return {{"commit_us",
           "commit of 64 sessions' 4 values, p50",
           "us",
           median.summary(),
           {},
           beside,
           "LMDB 0.9.24: 592, RocksDB 7.8: 285, a plain log: 104 us (measured elsewhere)"},
          {"commit_p99_us", "p99", "us", slowest.summary(), {}, "", ""}};
}

std::vector<SessionFigure> wake_costs(MadeSession& session, const StoragePlan& plan) {
  const ScratchDirectory scratch(plan.directory);
  const SteadyClock clock;
  const Transformer& model = *session.model().transformer;
  SqliteStorage storage(options_in(scratch.path() / "store"), clock);
  const std::vector<std::byte> state =
      std::move(session.store().image(session.id(), {}, std::nullopt, false, true).image.state);
  const PlainFile plain(scratch.path() / "plain", state.size());
  std::vector<StoredSession> sessions;
  for (int i = 0; i < plan.count; ++i) sessions.emplace_back(id_of(i), session.values());
  create_all(storage, sessions);
  for (StoredSession& each : sessions) each.open(storage);

  Sequences replay(model, 1);
  constexpr int kPlainBlocks = 20;
  Repeats put, synced, read, median, slowest, values;
  for (int r = 0; r < plan.repeats; ++r) {
    std::vector<double> puts, syncs, reads, wakes;
    std::vector<SessionStorage::StateRef> states;
    StorageWrites named;
    for (StoredSession& each : sessions) {
      SessionStorage::StateRef ref;
      ref.position = each.row.position;
      puts.push_back(microseconds_of(1, [&] { storage.put_state(each.row.id, state, &ref); })[0]);
      each.name_state(named, ref);
      states.push_back(ref);
    }
    named.commit_to(storage);
    storage.sync_states();  // and they are no longer held in memory
    for (int i = 0; i < kPlainBlocks; ++i) {
      syncs.push_back(microseconds_of(1, [&] { plain.append(); })[0]);
    }
    std::vector<std::byte> bytes(state.size());
    plain.forget();
    for (int i = 0; i < kPlainBlocks; ++i) {
      reads.push_back(microseconds_of(1, [&] { plain.read(i, bytes); })[0]);
    }
    for (const SessionStorage::StateRef& ref : states) {
      wakes.push_back(microseconds_of(1, [&] {
        if (storage.read_state(ref, bytes) != SessionError::kNone) {
          throw std::runtime_error("a state that was put cannot be read");
        }
        SequenceState woken = model.new_sequence();
        StateByteReader reader(bytes);
        woken.load(reader);
      })[0]);
    }
    put.add(quantile(puts, 0.5));
    synced.add(quantile(syncs, 0.5));
    read.add(1e-3 * quantile(reads, 0.5));
    median.add(1e-3 * quantile(wakes, 0.5));
    slowest.add(1e-3 * quantile(wakes, 0.99));
    values.add(1e-3 * microseconds_of(1, [&] {
                 replay.start(1, 0);
                 replay.read(0, std::span(session.values()).subspan(1));
               })[0]);
  }
  const std::string beside =
      "write and fdatasync of as much " + format_number(synced.median(), 3) + " us";
  const std::string from_disk =
      "the disk's part: pread of as much " + format_number(read.median(), 3) + " ms";
  const char* const others = "SGLang's HiCache: gigabytes of keys and values a second";
  return {
      {"put_state_us", "state into a slot, p50", "us", put.summary(), {}, beside, ""},
      {"wake_slot_ms", "woken from a slot that is not in memory, p50", "ms", median.summary(), 0.3,
       from_disk, others},
      {"wake_slot_p99_ms", "p99", "ms", slowest.summary(), 0.8, "", others},
      {"wake_values_ms",
       "woken from " + std::to_string(session.values().size()) + " values, one thread", "ms",
       values.summary(), 18, "", others},
  };
}

std::vector<SessionFigure> open_costs(const StoragePlan& plan) {
  const ScratchDirectory scratch(plan.directory);
  const SteadyClock clock;
  const fs::path living = scratch.path() / "living", dead = scratch.path() / "dead",
                 empty = scratch.path() / "empty";
  SqliteStorage storage(options_in(living), clock);
  std::vector<std::int32_t> values(kTokensOfASession);
  std::iota(values.begin(), values.end(), 0);
  for (std::int32_t& value : values) value %= 256;
  std::vector<StoredSession> sessions;
  for (int i = 0; i < plan.sessions; ++i) sessions.emplace_back(id_of(i), values);
  create_all(storage, sessions);
  StorageWrites started;
  for (int i = 0; i < std::min(kInterrupted, plan.sessions); ++i) {
    sessions[static_cast<std::size_t>(i)].open(storage);
    sessions[static_cast<std::size_t>(i)].begin(started);
  }
  started.commit_to(storage);

  Repeats of_empty, opened;
  for (int r = 0; r < plan.repeats; ++r) {
    // What a process that is killed now leaves behind.
    for (const fs::path& path : {dead, empty}) {
      fs::remove_all(path);
      fs::create_directory(path);
    }
    for (const fs::directory_entry& file : fs::directory_iterator(living)) {
      fs::copy_file(file.path(), dead / file.path().filename());
    }
    { const SqliteStorage made(options_in(empty), clock); }
    const auto open = [&](const fs::path& directory) {
      std::optional<SqliteStorage> storage_there;
      return 1e-3 *
             microseconds_of(1, [&] { storage_there.emplace(options_in(directory), clock); })[0];
    };
    of_empty.add(open(empty));
    opened.add(open(dead));
  }
  Repeats more;
  more.add(opened.median() - of_empty.median());
  const std::string what = std::to_string(plan.sessions) + " sessions, " +
                           std::to_string(std::min(kInterrupted, plan.sessions)) + " interrupted";
  return {{"open_after_kill_ms",
           "a store of " + what + ", opened after kill -9",
           "ms",
           opened.summary(),
           {},
           "an empty one " + format_number(of_empty.median(), 3) + " ms",
           ""},
          {"open_more_ms", "more than an empty one", "ms", more.summary(), 100, "",
           "rwkv_lightning (its code): the 80 sessions in its first two levels are gone, and one "
           "between eviction and its write is silently reset"}};
}

}  // namespace lintel::bench
