// SPDX-License-Identifier: Apache-2.0
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
namespace {

namespace fs = std::filesystem;

void require_done(SessionError outcome, const std::string& what) {
  if (outcome == SessionError::kNone) return;
  throw std::runtime_error(what + ": " + to_string(outcome));
}

// Writes with the bodies that they point to.
class StorageWrites {
 public:
  void add(SessionStorage::Write write, StorageBytes body) {
    bodies_.push_back(std::move(body));  // moved along, its bytes stay where they are
    write.body = bodies_.back();
    writes_.push_back(write);
  }

  // Returns when they are durable. Throws std::runtime_error for one that is refused.
  void commit_to(SessionStorage& storage) const {
    std::promise<SessionError> written;
    storage.commit(writes_, [&](std::span<const SessionError> outcomes) {
      SessionError worst = SessionError::kNone;
      for (const SessionError outcome : outcomes) {
        if (outcome != SessionError::kNone) worst = outcome;
      }
      written.set_value(worst);
    });
    require_done(written.get_future().get(), "the session store refuses a write");
  }

 private:
  std::vector<SessionStorage::Write> writes_;
  std::vector<StorageBytes> bodies_;
};

// A session as the writer to a storage knows it.
struct StoredSession {
  using Kind = SessionStorage::Write::Kind;

  explicit StoredSession(std::string id, std::vector<std::int32_t> of = {})
      : tokens(std::move(of)) {
    row.id = std::move(id);
    row.owner = "bench";
    row.model = "model";
    row.model_print = row.numerics = std::string(64, '0');
    row.durability = Durability::kInput;
    row.position = static_cast<std::int64_t>(tokens.size());
    row.created = row.used = std::chrono::system_clock::now();
    row.expires = row.used + std::chrono::hours(24 * 365);
    row.digest = digest_of(std::as_bytes(std::span(row.id)));
  }

  void create(StorageWrites& to) {
    to.add(write(Kind::kCreate, row.digest), encode_new_session({row, tokens}));
  }
  void begin(StorageWrites& to) {
    RowChange change;
    change.call = row.call = "call";
    to.add(write(Kind::kBegin, extend(row.digest, DigestKind::kBegin, {})), encode_change(change));
  }
  void append(StorageWrites& to, std::span<const std::int32_t> more) {
    row.position += static_cast<std::int64_t>(more.size());
    to.add(write(Kind::kValues, extend(row.digest, DigestKind::kValues, std::as_bytes(more))),
           encode_tokens(more));
  }
  void name_state(StorageWrites& to, const SessionStorage::StateRef& state) {
    RowChange change;
    change.states = row.states = {state};
    to.add(write(Kind::kState, row.digest), encode_change(change));
  }
  // And remembers the claim.
  void open(SessionStorage& storage) {
    const SessionStorage::Opened opened = storage.open(row.id, row.owner, nullptr);
    require_done(opened.outcome, "a stored session cannot be opened");
    claim = opened.claim;
  }

  SessionStorage::Row row;
  std::vector<std::int32_t> tokens;  // of its creation
  SessionStorage::Claim claim;

 private:
  SessionStorage::Write write(Kind kind, const Digest& after) {
    SessionStorage::Write write{.kind = kind,
                                .id = row.id,
                                .claim = claim,
                                .before = row.digest,
                                .after = after,
                                .position = row.position};
    row.digest = after;
    return write;
  }
};

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
  options.commit_interval = {};  // measures a commit, without its wait for others
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
  std::vector<std::int32_t> tokens(kTokensOfACommit);
  std::iota(tokens.begin(), tokens.end(), 200);

  std::vector<double> synced, typical, slowest;
  for (int r = 0; r < plan.repeats; ++r) {
    std::vector<double> commits, syncs;
    for (int i = 0; i < plan.count; ++i) {
      StorageWrites writes;
      for (StoredSession& session : sessions) session.append(writes, tokens);
      commits.push_back(microseconds_of([&] { writes.commit_to(storage); }));
      syncs.push_back(microseconds_of([&] { plain.append(); }));
    }
    synced.push_back(median(syncs));
    typical.push_back(median(commits));
    slowest.push_back(quantile(commits, 0.99));
  }
  const std::string beside =
      "write and fdatasync of 2,560 bytes " + format_number(median(synced), 3) + " us";
  return {figure_of("commit_us", "commit of 64 sessions' 4 tokens, p50", "us", typical, {}, beside,
                    "LMDB 0.9.24: 592, RocksDB 7.8: 285, a plain log: 104 us (measured elsewhere)"),
          figure_of("commit_p99_us", "p99", "us", slowest)};
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
  for (int i = 0; i < plan.count; ++i) sessions.emplace_back(id_of(i), session.tokens());
  create_all(storage, sessions);
  for (StoredSession& each : sessions) each.open(storage);

  Sequences replay(model, 1);
  constexpr int kPlainBlocks = 20;
  std::vector<double> put, synced, read, typical, slowest, from_tokens;
  for (int r = 0; r < plan.repeats; ++r) {
    std::vector<double> puts, syncs, reads, wakes;
    std::vector<SessionStorage::StateRef> states;
    StorageWrites named;
    for (StoredSession& each : sessions) {
      SessionStorage::StateRef ref;
      ref.position = each.row.position;
      puts.push_back(microseconds_of([&] { storage.put_state(each.row.id, state, &ref); }));
      each.name_state(named, ref);
      states.push_back(ref);
    }
    named.commit_to(storage);
    storage.sync_states();  // and they are no longer held in memory
    for (int i = 0; i < kPlainBlocks; ++i) {
      syncs.push_back(microseconds_of([&] { plain.append(); }));
    }
    std::vector<std::byte> bytes(state.size());
    plain.forget();
    for (int i = 0; i < kPlainBlocks; ++i) {
      reads.push_back(microseconds_of([&] { plain.read(i, bytes); }));
    }
    for (const SessionStorage::StateRef& ref : states) {
      wakes.push_back(microseconds_of([&] {
        require_done(storage.read_state(ref, bytes), "a state that was put cannot be read");
        SequenceState loaded = model.new_sequence();
        StateByteReader reader(bytes);
        loaded.load(reader);
      }));
    }
    put.push_back(median(puts));
    synced.push_back(median(syncs));
    read.push_back(1e-3 * median(reads));
    typical.push_back(1e-3 * median(wakes));
    slowest.push_back(1e-3 * quantile(wakes, 0.99));
    from_tokens.push_back(1e-3 * microseconds_of([&] {
                            replay.start(1, 0);
                            replay.read(0, std::span(session.tokens()).subspan(1));
                          }));
  }
  const std::string beside =
      "write and fdatasync of as much " + format_number(median(synced), 3) + " us";
  const std::string from_disk =
      "the disk's part: pread of as much " + format_number(median(read), 3) + " ms";
  const char* const others = "SGLang's HiCache: gigabytes of keys and values a second";
  return {
      figure_of("put_state_us", "state into a slot, p50", "us", put, {}, beside),
      figure_of("wake_slot_ms", "loaded from a slot that is not in memory, p50", "ms", typical, 0.3,
                from_disk, others),
      figure_of("wake_slot_p99_ms", "p99", "ms", slowest, 0.8, "", others),
      figure_of("wake_values_ms",
                "loaded from " + std::to_string(session.tokens().size()) + " tokens, one thread",
                "ms", from_tokens, 18, "", others)};
}

std::vector<SessionFigure> open_costs(const StoragePlan& plan) {
  const ScratchDirectory scratch(plan.directory);
  const SteadyClock clock;
  const fs::path living = scratch.path() / "living", dead = scratch.path() / "dead",
                 empty = scratch.path() / "empty";
  SqliteStorage storage(options_in(living), clock);
  std::vector<std::int32_t> tokens(kTokensOfASession);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % 256);
  std::vector<StoredSession> sessions;
  for (int i = 0; i < plan.sessions; ++i) sessions.emplace_back(id_of(i), tokens);
  create_all(storage, sessions);
  StorageWrites started;
  for (int i = 0; i < std::min(kInterrupted, plan.sessions); ++i) {
    sessions[static_cast<std::size_t>(i)].open(storage);
    sessions[static_cast<std::size_t>(i)].begin(started);
  }
  started.commit_to(storage);

  std::vector<double> of_empty, opened;
  for (int r = 0; r < plan.repeats; ++r) {
    // Copies the files that a process leaves behind if it is killed now.
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
      return 1e-3 * microseconds_of([&] { storage_there.emplace(options_in(directory), clock); });
    };
    of_empty.push_back(open(empty));
    opened.push_back(open(dead));
  }

  const std::string what = std::to_string(plan.sessions) + " sessions, " +
                           std::to_string(std::min(kInterrupted, plan.sessions)) + " interrupted";
  return {
      figure_of("open_after_kill_ms", "a store of " + what + ", opened after kill -9", "ms", opened,
                {}, "an empty one " + format_number(median(of_empty), 3) + " ms"),
      figure_of(
          "open_more_ms", "more than an empty one", "ms", {median(opened) - median(of_empty)}, 100,
          "",
          "rwkv_lightning (its code): the 80 sessions in its first two levels are gone, and one "
          "between eviction and its write is silently reset")};
}

}  // namespace lintel::bench
