// SPDX-License-Identifier: Apache-2.0
// SqliteStorage: sessions on this machine's disk. docs/session_storage.md describes the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/sqlite/sqlite_connection.h"
#include "server/sessions/storage/sqlite/sqlite_schema.h"
#include "server/sessions/storage/sqlite/state_slab.h"
#include "server/sessions/storage/sqlite/storage_file.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

// What is written goes to a journal first, many sessions' writes in one transaction, and from there
// into rows by session, now and then. A session whose rows are current takes no memory.
//
// After a failed write or sync, whose effect is unknown, nothing more is written until the storage
// is reopened (kBroken). On a full disk a commit frees room first: it drops stored states, which
// can be computed again from their sessions' tokens. What finds no room after that is refused
// (kFull), but for removals and releases, for which there is a reserve.
class SqliteStorage final : public SessionStorage {
 public:
  struct Options {
    std::filesystem::path directory;
    // A commit begins no sooner after the last one began, but at once where that was of a single
    // session.
    Duration commit_interval = std::chrono::milliseconds(5);
    std::uint64_t slab_bytes = std::uint64_t{64} << 30;  // for the states of each size
    std::size_t journal_bytes = std::size_t{32} << 20;   // then the oldest are folded into rows
    std::size_t log_bytes = std::size_t{8}
                            << 20;  // of the write-ahead log, then it is checkpointed
    std::size_t queue_bytes = std::size_t{64} << 20;  // waiting; more is kUnavailable
    // On the disk, for removals when there is no other room; 0: none. So much more than log_bytes
    // that the log can be moved into the database: its own room is then free for the next reserve.
    std::size_t reserve_bytes = std::size_t{9} << 20;
    // The file systems of tests.
    std::string sqlite_vfs;  // empty: the system's
    OpenStorageFile open_file = open_storage_file;
  };

  // Recovers what is there. Throws StorageError. `clock` outlives it.
  SqliteStorage(Options options, const Clock& clock);
  // Commits what is queued.
  ~SqliteStorage() override;

  Opened open(const SessionId& id, const Owner& owner, const Digest* have) override
      EXCLUDES(store_mutex_);
  Opened find(const SessionId& id, const Owner& owner) override EXCLUDES(store_mutex_);
  void commit(std::vector<Write> writes, Done done) override EXCLUDES(queue_mutex_);
  SessionError read_tokens(const SessionId& id, std::int64_t first,
                           std::span<std::int32_t> tokens) override EXCLUDES(store_mutex_);
  SessionError put_state(const SessionId& id, std::span<const std::byte> state,
                         StateRef* ref) override EXCLUDES(store_mutex_);
  bool holds_state(const StateRef& ref) override EXCLUDES(store_mutex_);
  SessionError read_state(const StateRef& ref, std::span<std::byte> state) override
      EXCLUDES(store_mutex_);
  std::vector<Row> list(const std::string& model, const SessionId& after, std::size_t limit,
                        const std::optional<Owner>& owner) override EXCLUDES(store_mutex_);
  // Nothing: there is no other writer.
  void renew(std::span<const SessionId> busy, Done done) override;
  std::size_t sweep(std::size_t most) override EXCLUDES(store_mutex_);
  Health health() const override EXCLUDES(queue_mutex_, store_mutex_);

  // Puts the states that were written on the disk, for its owner to call now and then. Those that
  // are the truth (the beginning of a history) commit() syncs before it answers.
  void sync_states() EXCLUDES(store_mutex_);

  // Sessions last `seconds` without use from now on, unless their own rows say otherwise: removes
  // those whose time, by `expiry_of` (nothing: by the row), is over, and writes an earlier end into
  // the others. Does nothing where that is what the store was written with. Returns how many
  // sessions it removed. Waits for the disk: before the storage is used.
  using ExpiryOf = std::function<std::optional<std::chrono::system_clock::time_point>(const Row&)>;
  std::size_t shorten_expiry(std::int64_t seconds, const ExpiryOf& expiry_of)
      EXCLUDES(store_mutex_);

 private:
  struct Batch {
    std::vector<Write> writes;
    Done done;
    std::size_t bytes = 0;
    std::vector<SessionError> outcomes;  // of `writes`
  };
  struct Held {
    Claim claim;
    std::vector<StateRef> put;  // states that nothing names yet
  };
  // A session with records in the journal.
  struct Tail {
    StorageSession session;
    bool stored = false;                       // has a row
    std::vector<StateRef> stored_states;       // of that row
    std::int64_t first_seq = 0, last_seq = 0;  // of its records that the row does not know; 0: none
  };
  using Tails = std::map<SessionId, Tail>;
  std::size_t sweep_rows(std::size_t most) EXCLUDES(store_mutex_);
  // A transaction in the making: what takes it back, and what is left to do when it stands.
  struct Transaction {
    struct Step {
      SessionId id;
      StorageSession::Undo undo{};
      std::int64_t first_seq = 0, last_seq = 0;  // of the tail before
      bool created = false;
    };
    std::vector<Step> steps;
    std::map<SessionId, std::vector<StateRef>>
        states_before;  // of sessions whose states may change
    std::vector<std::pair<SessionId, Held>> let_go;
    std::set<SessionId> fold;        // asked for
    std::vector<SessionId> folded;   // done, or set aside:
    std::vector<SessionId> damaged;  // of those
    std::int64_t last_seq = 0;       // before
    std::int64_t keep_from = 0;      // records before it are dropped
    std::vector<std::uint32_t> record_bytes;
    std::size_t journal_bytes = 0;         // of those
    std::size_t created = 0, removed = 0;  // sessions
    bool names_states = false;
  };

  // Recovery.
  void scan_journal() REQUIRES(store_mutex_);
  void set_aside(const std::set<SessionId>& sessions, const std::set<std::int64_t>& records)
      REQUIRES(store_mutex_);
  void count_slots() REQUIRES(store_mutex_);

  void write_until_closed() EXCLUDES(queue_mutex_, store_mutex_);
  // As one transaction, and fills in the outcomes.
  void commit_batches(std::vector<Batch>& batches) EXCLUDES(store_mutex_);
  // The same; an exception that nothing foresaw breaks the storage, for what is known of it may be
  // wrong.
  void commit_or_break(std::vector<Batch>& batches) noexcept EXCLUDES(store_mutex_);
  // Runs `body` as one transaction. Anything but kDone: all it did is taken back.
  SessionError transact(const std::function<void(Transaction&)>& body) REQUIRES(store_mutex_);

  // sqlite_storage_room.cpp. The same; where there is no room, once more after each step that may
  // free some, and at last with only_removals: then the body does nothing but remove or release,
  // and folds nothing. The body may run several times.
  SessionError transact_making_room(
      const std::function<void(Transaction&, bool only_removals)>& body, bool has_removals)
      REQUIRES(store_mutex_);
  // Restores the reserve where it was used. False: there is no room for it, so only removals are
  // possible.
  bool make_reserve() REQUIRES(store_mutex_);
  bool write_reserve(std::size_t bytes) REQUIRES(store_mutex_);
  void cut_reserve() REQUIRES(store_mutex_);
  // Moves the log into the database; cuts_log: and gives its room back. As far as there is room.
  void empty_log(bool cuts_log) REQUIRES(store_mutex_);
  // Drops states of idle sessions, the longest unused first, until so many bytes are free. Returns
  // how many are; 0: there is nothing left to drop.
  std::size_t drop_states(std::size_t bytes) REQUIRES(store_mutex_);
  std::size_t drop_states_of(const SessionId& id) REQUIRES(store_mutex_);
  // Room for a state without which its session could not be read, by dropping others. False: it is
  // none such, or nothing is left to drop.
  bool make_room_for_base(const SessionId& id, std::size_t state_bytes) EXCLUDES(store_mutex_);
  // As drop_states() of those beyond options_.slab_bytes; cuts the slabs.
  void drop_states_beyond_limit() REQUIRES(store_mutex_);
  // Of at most 256 sessions after `after`, which is advanced. kNotFound: there are no more.
  SessionError shorten_some(const ExpiryOf& expiry_of, SessionId& after, std::size_t& removed)
      REQUIRES(store_mutex_);
  SessionError write(const Write& write, Transaction& transaction) REQUIRES(store_mutex_);
  SessionError create(const Write& write, Transaction& transaction) REQUIRES(store_mutex_);
  // Applies a write whose claim is valid.
  SessionError change(Tails::iterator tail, const Write& write, Transaction& transaction)
      REQUIRES(store_mutex_);
  void record(const Write& write, Tail& tail, Transaction& transaction) REQUIRES(store_mutex_);
  void fold_some(Transaction& transaction) REQUIRES(store_mutex_);
  void fold(const SessionId& id, Transaction& transaction) REQUIRES(store_mutex_);
  void sync_base_states(const Transaction& transaction) REQUIRES(store_mutex_);
  void finish(Transaction& transaction) REQUIRES(store_mutex_);
  void take_back(Transaction& transaction) REQUIRES(store_mutex_);
  void checkpoint(std::size_t bytes) REQUIRES(store_mutex_);
  void break_off(const std::string& why) REQUIRES(store_mutex_);
  // Frees the slots that commits have given up. Without the store's mutex: a slot is punched, which
  // waits for the file system.
  void free_slots() EXCLUDES(store_mutex_);

  // Its row in the tables, damaged where it cannot be right.
  SqliteSchema::Found stored(const SessionId& id) REQUIRES(store_mutex_);
  // Its tail, made of its row where it has none; end() on failure, with the reason in `outcome`.
  Tails::iterator tail_of(const SessionId& id, SessionError* outcome) REQUIRES(store_mutex_);
  // Its row, wherever it stands; memory stays as it is.
  SessionError row_of(const SessionId& id, Row* row) REQUIRES(store_mutex_);
  StateSlab& slab_for(std::size_t state_bytes) REQUIRES(store_mutex_);
  void forget_tail(Tails::iterator tail) REQUIRES(store_mutex_);
  // Of the oldest record that is there.
  std::int64_t first_record() const REQUIRES(store_mutex_) {
    return last_seq_ + 1 - static_cast<std::int64_t>(record_bytes_.size());
  }

  const Options options_;
  const Clock& clock_;
  const StorageDirectory directory_;

  mutable Mutex queue_mutex_;
  CondVar queue_changed_;
  std::vector<Batch> queue_ GUARDED_BY(queue_mutex_);
  std::size_t queued_bytes_ GUARDED_BY(queue_mutex_) = 0;
  bool closing_ GUARDED_BY(queue_mutex_) = false;

  // One connection, one at a time. Slabs have locks of their own; the map of them is of this one.
  mutable Mutex store_mutex_;
  std::unique_ptr<SqliteConnection> connection_ GUARDED_BY(store_mutex_);
  std::unique_ptr<SqliteSchema> schema_ GUARDED_BY(store_mutex_);
  std::unique_ptr<CommitWatermark> acknowledged_ GUARDED_BY(store_mutex_);
  Tails tails_ GUARDED_BY(store_mutex_);
  std::map<std::int64_t, SessionId> by_first_seq_ GUARDED_BY(store_mutex_);  // of tails
  std::int64_t last_seq_ GUARDED_BY(store_mutex_) = 0;
  std::deque<std::uint32_t> record_bytes_ GUARDED_BY(store_mutex_);  // of those that are there
  std::map<SessionId, Held> held_ GUARDED_BY(store_mutex_);
  std::set<SessionId> quarantined_ GUARDED_BY(store_mutex_);
  std::map<std::size_t, std::unique_ptr<StateSlab>> slabs_ GUARDED_BY(store_mutex_);
  // Slots that nothing names any more, in use until they are punched.
  std::vector<std::pair<StateSlab*, std::uint64_t>> given_up_ GUARDED_BY(store_mutex_);
  std::uint64_t last_fence_ GUARDED_BY(store_mutex_) = 0;
  std::unique_ptr<StorageFile> reserve_ GUARDED_BY(store_mutex_);
  bool has_reserve_ GUARDED_BY(store_mutex_) = false;
  // Where the search for states to drop continues; and that it found none since a state was stored
  // or a session released.
  SqliteSchema::Expiring dropped_up_to_ GUARDED_BY(store_mutex_);
  bool nothing_to_drop_ GUARDED_BY(store_mutex_) = false;
  // Sessions whose removal or release is in the journal alone, for want of room.
  std::set<SessionId> unfolded_ GUARDED_BY(store_mutex_);
  Health health_ GUARDED_BY(store_mutex_);

  std::thread writer_;
};

}  // namespace lintel
