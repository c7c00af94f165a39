// SPDX-License-Identifier: Apache-2.0
// PersistentSessions: sessions that outlive the process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/threads.h"
#include "server/models/model_registry.h"
#include "server/sessions/digest.h"
#include "server/sessions/persistence/call_records.h"
#include "server/sessions/persistence/call_writer.h"
#include "server/sessions/persistence/paged_state.h"
#include "server/sessions/persistence/persistent_request.h"
#include "server/sessions/persistence/replayed_response.h"
#include "server/sessions/session_manager.h"
#include "server/sessions/session_options.h"
#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

class ModelRegistry;
class WriteBatch;

// Sessions that hold the state of a conversation (stored_chat_states.h) have ids that begin so;
// those of others are hexadecimal. For callers they are not there.
inline constexpr const char* kChatStateIdPrefix = "chat-";

// Runs `attempt` again for as long as it returns kStale: other processes write to a storage that is
// shared, between two reads of it as well. kStoreAway after 16 attempts.
template <typename Attempt>
SessionRefusal until_current(const Attempt& attempt) {
  constexpr int kMostAttempts = 16;
  for (int i = 0; i < kMostAttempts; ++i) {
    const SessionRefusal refusal = attempt();
    if (refusal.error != SessionError::kStale) return refusal;
  }
  return {SessionError::kStoreAway};
}

// Between the sessions in memory and the storage. A durable session's tokens are in the storage;
// what is of it in memory is a copy, which is evicted when memory is needed and loaded when a call
// needs it.
//
// Thread-safe. What is marked "waits" waits for a disk: never on a worker or one of gRPC's threads,
// but by run().
class PersistentSessions {
 public:
  struct Options {
    Durability durability = Durability::kInput;  // of sessions whose maker does not say
    // A TOKEN call's tokens are written so often, an INPUT call's once they are so many or so old.
    Duration commit_interval = std::chrono::milliseconds(5);
    Duration lazy_interval = std::chrono::seconds(1);
    std::int64_t lazy_tokens = 256;
    ParkPolicy park{};
    std::chrono::seconds expire_after = std::chrono::hours(720);
    // Whether a session whose tokens another machine computed, with other bits, continues here.
    bool takes_other_numerics = true;
    Duration patience = std::chrono::seconds(1);  // with a store that is full or away
    int threads = 2;           // 0: run() does the work itself, and tokens are written by write()
    std::size_t queue = 1024;  // of work that waits for them
  };

  struct Stats {
    std::uint64_t loaded_from_slot = 0, loaded_from_tokens = 0;
    std::uint64_t calls_resumed = 0;
    // Tokens that were read again: of sessions that were loaded without their last state, of those
    // that were rewound, and of calls that are run again.
    std::uint64_t replayed_cold = 0, replayed_rewound = 0, replayed_resumed = 0;
    std::uint64_t numerics_changed = 0;  // sessions that were loaded on a machine of other numerics
    std::uint64_t states_stored = 0;
    std::size_t queued = 0;  // work that waits for a thread
  };

  // All outlive it.
  PersistentSessions(SessionStorage& storage, SessionManager& store, const ModelRegistry& models,
                     const Clock& clock, const Options& options);
  ~PersistentSessions();  // ends what is queued; REQUIRES: no call runs

  // Runs `work` on a thread that may wait; false: too much is waiting already.
  bool run(std::function<void()> work);

  // Waits. A session that was just made (created, forked, restored) and is in memory: it is durable
  // when this returns kNone; else it is not, and for its maker to remove.
  SessionRefusal persist(const std::string& id, const Owner& owner);
  // Waits. Loads a session that is not in memory, and keeps it there while the pin lives; also one
  // that is there, or was never durable. kNotFound (also of one that has expired), kModelMismatch,
  // kDamaged, kHeld, kStore..., and those of memory.
  SessionManager::LoadResult load(const std::string& id, const Owner& owner);
  // Waits. Leases the session, which is loaded if it is not in memory. The copy may be stale where
  // other servers write to the storage, too: open_call() checks.
  SessionManager::LeaseResult load_and_lease(const std::string& id, const Owner& owner);
  // Waits. As the store's, also of sessions that are not in memory, which stay where they are.
  std::optional<SessionInfo> find(const std::string& id, const Owner& owner);
  // Waits. Why find() has none: kNotFound, kUnloaded, kDamaged, kStore...
  SessionRefusal absence(const std::string& id, const Owner& owner);
  std::vector<SessionInfo> list(const std::string& model, const std::string& after_id,
                                std::size_t limit, const std::optional<Owner>& owner);
  SessionRefusal remove(const std::string& id, const Owner& owner);
  // Waits. As the store's, durable when it returns; gives up an interrupted call.
  SessionManager::CreateResult rewind(const std::string& id, const Owner& owner,
                                      std::int64_t position, const std::optional<Digest>& expected);
  // The same of a session that is leased. kStale: another process has continued it; the copy in
  // memory is dropped when the lease ends.
  SessionRefusal rewind(SessionLease& lease, std::int64_t position,
                        const std::optional<Digest>& expected = std::nullopt);

  // What a call runs on, or what it gave when it was run.
  struct OpenedCall {
    std::shared_ptr<PersistentRequest> call;  // the keeper of the lease; null: it is past
    // Where it begins. Of a call that is run again: its seed, and the tokens it had from where the
    // session stands now, which is after those that no replay needs.
    std::optional<std::uint64_t> seed;
    std::int64_t start = 0;
    std::vector<std::int32_t> tokens;
    std::shared_ptr<ReplayedResponse> past;
  };
  // Waits. A call on a session that is leased and durable: new, or run again, with the session
  // rewound on its way; the lease of one that is past can go back. Where another process has
  // continued the session it is loaded once more, and `lease` is the new one; kStoreAway: `model`
  // has been replaced meanwhile. kCallInterrupted, kPositionMismatch, kNumericsChanged,
  // kNumericsRefused, kCallDiffers, kNoProbabilities, kOutOfRange, kStore...: the lease, if there
  // is one, is to go back.
  SessionRefusal open_call(SessionLease& lease, const SharedModel& model,
                           const IdempotencyKey& terms, OpenedCall& opened);
  // Waits. Tokens [first, first + tokens.size()) of a call that is past, for as long as the session
  // has that call.
  SessionError read_past(const ReplayedResponse& call, std::int64_t first,
                         std::span<std::int32_t> tokens);

  // Waits. Stores a row that no session in memory has, and its first state; false: neither is
  // there.
  bool store_row(const NewSession& row, const PagedState& state);
  // Waits. Removes a row that no session in memory has.
  SessionRefusal remove_row(const std::string& id, const Owner& owner);

  // Waits. Whether the session began with a call of this name, which can be repeated.
  bool began_with(const std::string& id, const Owner& owner, const std::string& call_id);

  // What is due of running calls is queued when it returns: where there are no threads.
  void write() { writer_.write(); }

  // Before the process ends: running calls that can be repeated end after their step, kMoved, with
  // their tokens and the release of their session written; so do those that come later.
  void hand_over() { writer_.hand_over(); }

  // Waits, but begins nothing more once `most` has passed. Before the process ends: stores the
  // states of idle sessions, the last used first, so that they load without reading their tokens.
  // Returns how many. model: before it is unloaded, of its sessions alone; null: of all.
  std::size_t store_idle_states(Duration most, const Transformer* model = nullptr);

  // Removes expired sessions, a bounded number at a time, and releases claims whose release failed;
  // the server calls it periodically. Waits.
  std::size_t sweep();

  const Options& options() const { return options_; }
  Stats stats() const;
  SessionStorage::Health health() const { return storage_.health(); }

 private:
  // A session that the storage has, and the model that continues it.
  struct FoundSession {
    SessionStorage::Row row;
    StoredMarks marks;
    std::optional<StoredCall> call;  // that was interrupted, or runs elsewhere
    SessionRefusal held;             // kHeld: by another process
    SessionStorage::Claim claim;
    std::shared_ptr<const ClaimLease> lease;  // of the claim; null: there is none
    SharedModel model;                        // null: none that is loaded is the one
  };
  // kNone, kNotFound, kDamaged, kStore...
  SessionRefusal read_row(const std::string& id, const Owner& owner, FoundSession& stored);
  // The same of the storage's answer; a claim that came with it is in `stored`, also where it is
  // refused.
  SessionRefusal decode_row(SessionStorage::Opened found, FoundSession& stored);
  // As open_call(); kStale: the copy in memory is not what the storage has, and is dropped when the
  // lease ends.
  SessionRefusal try_open_call(SessionLease& lease, const SharedModel& model,
                               const IdempotencyKey& terms, OpenedCall& opened);
  // The same of a row that was read.
  SessionRefusal open_call_of(SessionLease& lease, const SharedModel& model,
                              const IdempotencyKey& terms, FoundSession& stored,
                              OpenedCall& opened);
  // Of a session that a call has: while the store is away it cannot be released, and that is what
  // the caller waits for.
  SessionRefusal busy_or_away(const SessionRefusal& refusal) const;
  SharedModel model_of(const SessionStorage::Row& row) const;
  bool has_expired(const SessionStorage::Row& row) const;
  // As load(), also of one that is in memory and has expired.
  SessionManager::LoadResult load_current(const std::string& id, const Owner& owner);
  // Of a session that is not in memory. kStale: another server wrote between its row and its
  // tokens, since nothing is claimed meanwhile.
  SessionManager::LoadResult restore(const std::string& id, const Owner& owner);
  // The same of a row that was read.
  SessionManager::LoadResult restore_row(const std::string& id, const Owner& owner,
                                         const FoundSession& stored);
  // Of a storage that others write, too: drops a copy in memory that is not what the storage has.
  SessionRefusal drop_if_stale(const std::string& id, const Owner& owner);
  // A call is run again that has the tokens [start, where the session stands): the session goes
  // back to `at`, the first of them that its client, or what may stop it, needs once more.
  SessionRefusal replay(SessionLease& lease, const SessionStorage::Row& row, std::int64_t start,
                        std::int64_t at, std::uint64_t seed, OpenedCall& opened);
  // The latest state with `least` to `most` tokens that can be read; position 0: there is none.
  PagedState read_state(const SessionStorage::Row& row, std::int64_t least, std::int64_t most);
  // As SessionManager::rewind, from the nearest state in memory or in the storage.
  SessionRefusal rewind(SessionLease& lease, const SessionStorage::Row& row, std::int64_t position,
                        const std::optional<Digest>& expected);
  // Its tokens, and the latest state that leads to them.
  SessionRefusal read_image(const FoundSession& found, SessionImage& image);
  // What stores the state of an idle session where that pays, and releases its claim.
  bool store_idle_state(const std::string& id, const Owner& owner, WriteBatch& batch);
  // The state of a session whose claim the caller has, for a write to name; empty where there is no
  // room. stored: as PagedState::of.
  StoredStates put_state(SessionLease& lease, const StoredStates& stored);
  SessionError create_row(const NewSession& row);
  // Of a row that was just made: its state, so that it loads without reading its tokens.
  bool store_state(const std::string& id, const Owner& owner, const PagedState& state);
  SessionInfo info_of(const SessionStorage::Row& row) const;
  // Whether another process has continued what is in memory.
  bool is_stale(const SessionStorage::Row& row, const SessionInfo& info) const;
  void add_row_info(const SessionStorage::Row& row, SessionInfo& info) const;
  // Waits; the batch ends with what releases the claim. Where that fails sweep() does it.
  SessionError commit_and_release(WriteBatch& batch, const std::string& id, const Owner& owner,
                                  const SessionStorage::Claim& claim);
  std::chrono::system_clock::time_point expiry(const SessionOptions& session) const;

  SessionStorage& storage_;
  SessionManager& sessions_;
  const ModelRegistry& models_;
  const Clock& clock_;
  const Options options_;

  // Held by what loads a session, changes it or removes it while no call has it.
  KeyedMutex locks_;
  std::atomic<std::uint64_t> from_slot_{0}, from_tokens_{0}, resumed_{0}, states_stored_{0};
  std::atomic<std::uint64_t> replayed_cold_{0}, replayed_rewound_{0}, replayed_resumed_{0};
  std::atomic<std::uint64_t> numerics_changed_{0};
  PendingReleases lost_claims_;
  CallWriter writer_;
  WorkThreads threads_;  // last: their work uses the rest
};

}  // namespace lintel
