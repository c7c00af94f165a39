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

// Writes go to a journal first, those of many sessions in one transaction, and from there into rows
// by session, now and then. A session whose rows are current takes no memory.
//
// After a failed write or sync, whose effect is unknown, nothing more is written until the storage
// is reopened (kBroken). On a full disk a commit frees room first: it drops stored states, which
// can be computed again from their sessions' tokens. Writes that have no room after that are
// refused (kStoreFull), except removals and releases, for which there is a reserve.
class SqliteStorage final : public SessionStorage {
 public:
  struct Options {
    std::filesystem::path directory;
    // The least time between the beginnings of commits; none after a commit of a single session.
    Duration commit_interval = std::chrono::milliseconds(5);
    std::uint64_t slab_bytes = std::uint64_t{64} << 30;  // for the states of each size
    std::size_t journal_bytes = std::size_t{32} << 20;   // then the oldest are folded into rows
    std::size_t log_bytes = std::size_t{8}
                            << 20;  // of the write-ahead log, then it is checkpointed
    std::size_t queue_bytes = std::size_t{64} << 20;  // waiting; more is kStoreAway
    // Reserved on the disk, for removals when there is no other room; 0: none. Exceeds log_bytes so
    // far that the log can be moved into the database: its own room is then free for the next
    // reserve.
    std::size_t reserve_bytes = std::size_t{9} << 20;
    // The file systems of tests.
    std::string sqlite_vfs;  // empty: the system's
    OpenStorageFile open_file = open_storage_file;
  };

  // Opens and recovers the storage. Throws StorageError. `clock` outlives it.
  SqliteStorage(Options options, const Clock& clock);
  // Commits queued writes.
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
  // Does nothing: there is no other writer.
  void renew(std::span<const SessionId> busy, Done done) override;
  std::size_t sweep(std::size_t most) override EXCLUDES(store_mutex_);
  Health health() const override EXCLUDES(queue_mutex_, store_mutex_);

  // Syncs the states that were written to the disk; the owner calls it now and then. States that
  // are required (at the beginning of a history) are synced by commit() before it answers.
  void sync_states() EXCLUDES(store_mutex_);

  // Applies a --session-expire of `seconds` to sessions, unless their own rows have a time: removes
  // those that have expired by `expiry_of` (nothing: by the row), and shortens the others. Does
  // nothing if the store was written with the same time. Returns how many sessions it removed.
  // Waits for the disk: called before the storage is used.
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
    std::vector<StateRef> put;  // states that no row names yet
  };
  // A session with records in the journal.
  struct Tail {
    StorageSession session;
    bool stored = false;                       // has a row
    std::vector<StateRef> stored_states;       // of that row
    std::int64_t first_seq = 0, last_seq = 0;  // of its records that the row lacks; 0: none
  };
  using Tails = std::map<SessionId, Tail>;
  std::size_t sweep_rows(std::size_t most) EXCLUDES(store_mutex_);
  // A transaction in progress: the data to undo it, and the work that remains after its commit.
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
    std::set<SessionId> fold;        // requested
    std::vector<SessionId> folded;   // done, or quarantined:
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
  // Commits the batches as one transaction, and sets their outcomes.
  void commit_batches(std::vector<Batch>& batches) EXCLUDES(store_mutex_);
  // The same; an unexpected exception breaks the storage, as its data in memory may be wrong.
  void commit_or_break(std::vector<Batch>& batches) noexcept EXCLUDES(store_mutex_);
  // Runs `body` as one transaction, which is rolled back unless the result is kNone.
  SessionError transact(const std::function<void(Transaction&)>& body) REQUIRES(store_mutex_);

  // The same; without room, repeated after each step that may free some, and at last with
  // only_removals: then the body only removes or releases, and folds nothing. The body may run
  // several times.
  SessionError transact_making_room(
      const std::function<void(Transaction&, bool only_removals)>& body, bool has_removals)
      REQUIRES(store_mutex_);
  // Restores the reserve if it was used. False: there is no room for it, so only removals are
  // possible.
  bool make_reserve() REQUIRES(store_mutex_);
  bool write_reserve(std::size_t bytes) REQUIRES(store_mutex_);
  void cut_reserve() REQUIRES(store_mutex_);
  // Moves the log into the database as far as there is room; cuts_log: and frees its room.
  void empty_log(bool cuts_log) REQUIRES(store_mutex_);
  // Drops states of idle sessions, the longest unused first, until so many bytes are free. Returns
  // how many are; 0: there is nothing left to drop.
  std::size_t drop_states(std::size_t bytes) REQUIRES(store_mutex_);
  std::size_t drop_states_of(const SessionId& id) REQUIRES(store_mutex_);
  // Makes room, by dropping other states, for a state without which its session could not be read.
  // False: it is not such a state, or there is nothing left to drop.
  bool make_room_for_base(const SessionId& id, std::size_t state_bytes) EXCLUDES(store_mutex_);
  // Drops states beyond options_.slab_bytes, as drop_states(); cuts the slabs.
  void drop_states_beyond_limit() REQUIRES(store_mutex_);
  // Does shorten_expiry() for at most 256 sessions after `after`, which is advanced. kNotFound:
  // there are no more.
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
  // Frees the slots that commits have released. Without the store's mutex: a slot is punched, which
  // waits for the file system.
  void free_slots() EXCLUDES(store_mutex_);

  // The row of a session in the tables; damaged if it is not consistent.
  SqliteSchema::Found stored(const SessionId& id) REQUIRES(store_mutex_);
  // The tail of a session, made of its row if it has none; end() on failure, with the reason in
  // `outcome`.
  Tails::iterator tail_of(const SessionId& id, SessionError* outcome) REQUIRES(store_mutex_);
  // The row of a session, from the journal or the tables; memory is unchanged.
  SessionError row_of(const SessionId& id, Row* row) REQUIRES(store_mutex_);
  StateSlab& slab_for(std::size_t state_bytes) REQUIRES(store_mutex_);
  void forget_tail(Tails::iterator tail) REQUIRES(store_mutex_);
  // The number of the oldest record.
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

  // Serialises the use of the connection. Slabs have locks of their own; this one guards their map.
  mutable Mutex store_mutex_;
  std::unique_ptr<SqliteConnection> connection_ GUARDED_BY(store_mutex_);
  std::unique_ptr<SqliteSchema> schema_ GUARDED_BY(store_mutex_);
  std::unique_ptr<CommitWatermark> acknowledged_ GUARDED_BY(store_mutex_);
  Tails tails_ GUARDED_BY(store_mutex_);
  std::map<std::int64_t, SessionId> by_first_seq_ GUARDED_BY(store_mutex_);  // of tails
  std::int64_t last_seq_ GUARDED_BY(store_mutex_) = 0;
  std::deque<std::uint32_t> record_bytes_ GUARDED_BY(store_mutex_);  // of present records
  std::map<SessionId, Held> held_ GUARDED_BY(store_mutex_);
  std::set<SessionId> quarantined_ GUARDED_BY(store_mutex_);
  std::map<std::size_t, std::unique_ptr<StateSlab>> slabs_ GUARDED_BY(store_mutex_);
  // Slots without references, in use until they are punched.
  std::vector<std::pair<StateSlab*, std::uint64_t>> given_up_ GUARDED_BY(store_mutex_);
  std::uint64_t last_fence_ GUARDED_BY(store_mutex_) = 0;
  std::unique_ptr<StorageFile> reserve_ GUARDED_BY(store_mutex_);
  bool has_reserve_ GUARDED_BY(store_mutex_) = false;
  // The place where the search for states to drop continues; and true if it found none since a
  // state was stored or a session released.
  SqliteSchema::Expiring dropped_up_to_ GUARDED_BY(store_mutex_);
  bool nothing_to_drop_ GUARDED_BY(store_mutex_) = false;
  // Sessions whose removal or release is only in the journal, for lack of room.
  std::set<SessionId> unfolded_ GUARDED_BY(store_mutex_);
  Health health_ GUARDED_BY(store_mutex_);

  std::thread writer_;
};

}  // namespace lintel
