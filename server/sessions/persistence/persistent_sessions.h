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

// The beginning of the ids of sessions that hold the state of a conversation
// (stored_chat_states.h); other ids are hexadecimal. Callers do not see such sessions.
inline constexpr const char* kChatStateIdPrefix = "chat-";

// Repeats `attempt` while it returns kStale: other processes write to a shared storage, also
// between two reads. kStoreAway after 16 attempts.
template <typename Attempt>
SessionRefusal until_current(const Attempt& attempt) {
  constexpr int kMostAttempts = 16;
  for (int i = 0; i < kMostAttempts; ++i) {
    const SessionRefusal refusal = attempt();
    if (refusal.error != SessionError::kStale) return refusal;
  }
  return {SessionError::kStoreAway};
}

// Connects the sessions in memory to the storage. A durable session's tokens are in the storage;
// memory has a copy, which is evicted when memory is needed and loaded when a call needs it.
//
// Thread-safe. Functions marked "waits" wait for a disk: they are called by run(), never on a
// worker or one of gRPC's threads.
class PersistentSessions {
 public:
  struct Options {
    Durability durability = Durability::kInput;  // of sessions created without one
    // The interval at which a TOKEN call's tokens are written, and the age and number at which an
    // INPUT call's are.
    Duration commit_interval = std::chrono::milliseconds(5);
    Duration lazy_interval = std::chrono::seconds(1);
    std::int64_t lazy_tokens = 256;
    ParkPolicy park{};
    std::chrono::seconds expire_after = std::chrono::hours(720);
    // True: sessions whose tokens another machine computed, with other bits, continue here.
    bool takes_other_numerics = true;
    Duration patience = std::chrono::seconds(1);  // with a store that is full or away
    int threads = 2;           // 0: run() does the work itself, and write() writes the tokens
    std::size_t queue = 1024;  // most work that waits for them
  };

  struct Stats {
    std::uint64_t loaded_from_slot = 0, loaded_from_tokens = 0;
    std::uint64_t calls_resumed = 0;
    // Tokens that were read again: in sessions that were loaded without their last state, in those
    // that were rewound, and in calls that are run again.
    std::uint64_t replayed_cold = 0, replayed_rewound = 0, replayed_resumed = 0;
    std::uint64_t numerics_changed = 0;  // sessions that were loaded on a machine of other numerics
    std::uint64_t states_stored = 0;
    std::size_t queued = 0;  // work that waits for a thread
  };

  // All arguments outlive it.
  PersistentSessions(SessionStorage& storage, SessionManager& store, const ModelRegistry& models,
                     const Clock& clock, const Options& options);
  ~PersistentSessions();  // ends queued work; REQUIRES: no call runs

  // Runs `work` on a thread that may wait; false: the queue is full.
  bool run(std::function<void()> work);

  // Waits. Makes a new session in memory (created, forked, restored) durable. kNone: it is;
  // otherwise it is not, and the caller has to remove it.
  SessionRefusal persist(const std::string& id, const Owner& owner);
  // Waits. Loads a session that is not in memory, and keeps it there while the pin lives; also pins
  // one that is in memory, or was never durable. kNotFound (also if it has expired),
  // kModelMismatch, kDamaged, kHeld, kStore..., and the errors of memory.
  SessionManager::LoadResult load(const std::string& id, const Owner& owner);
  // Waits. Leases the session, which is loaded if it is not in memory. The copy may be stale if
  // other servers write to the storage, too: open_call() checks.
  SessionManager::LeaseResult load_and_lease(const std::string& id, const Owner& owner);
  // Waits. As SessionManager's, also for sessions that are not in memory; they are not loaded.
  std::optional<SessionInfo> find(const std::string& id, const Owner& owner);
  // Waits. The reason why find() returns none: kNotFound, kUnloaded, kDamaged, kStore...
  SessionRefusal absence(const std::string& id, const Owner& owner);
  std::vector<SessionInfo> list(const std::string& model, const std::string& after_id,
                                std::size_t limit, const std::optional<Owner>& owner);
  SessionRefusal remove(const std::string& id, const Owner& owner);
  // Waits. As SessionManager's, durable on return; gives up an interrupted call.
  SessionManager::CreateResult rewind(const std::string& id, const Owner& owner,
                                      std::int64_t position, const std::optional<Digest>& expected);
  // The same for a leased session. kStale: another process has continued it; the copy in memory is
  // dropped when the lease ends.
  SessionRefusal rewind(SessionLease& lease, std::int64_t position,
                        const std::optional<Digest>& expected = std::nullopt);

  // An opened call: its session's part in a run, or the response of an earlier run.
  struct OpenedCall {
    std::shared_ptr<PersistentRequest> call;  // the keeper of the lease; null: the call is past
    // The start of the call. For a call that is run again: its seed, and its tokens from the
    // session's present position on, which is after those that need no replay.
    std::optional<std::uint64_t> seed;
    std::int64_t start = 0;
    std::vector<std::int32_t> tokens;
    std::shared_ptr<ReplayedResponse> past;
  };
  // Waits. Opens a call on a leased, durable session: a new one, or one to be run again, for which
  // the session is rewound to a position in it, or a past one, whose lease can be released. If
  // another process has continued the session it is loaded once more, and `lease` is the new one;
  // kStoreAway: `model` has been replaced meanwhile. kCallInterrupted, kPositionMismatch,
  // kNumericsChanged, kNumericsRefused, kCallDiffers, kNoProbabilities, kOutOfRange, kStore...: the
  // lease, if there is one, has to be released.
  SessionRefusal open_call(SessionLease& lease, const SharedModel& model,
                           const IdempotencyKey& terms, OpenedCall& opened);
  // Waits. Reads tokens [first, first + tokens.size()) of a past call, for as long as the session
  // has that call.
  SessionError read_past(const ReplayedResponse& call, std::int64_t first,
                         std::span<std::int32_t> tokens);

  // Waits. Stores a row that no session in memory has, and its first state; false: stores neither.
  bool store_row(const NewSession& row, const PagedState& state);
  // Waits. Removes a row that no session in memory has.
  SessionRefusal remove_row(const std::string& id, const Owner& owner);

  // Waits. True if the session began with a call of this id, which can be repeated.
  bool began_with(const std::string& id, const Owner& owner, const std::string& call_id);

  // Queues the due writes of running calls. For use without threads.
  void write() { writer_.write(); }

  // Called before the process ends: running calls that can be repeated end after their step,
  // kMoved, with their tokens and the release of their session written; so do later ones.
  void hand_over() { writer_.hand_over(); }

  // Waits, but begins nothing more once `most` has passed. Called before the process ends, or
  // before `model` is unloaded (null: all models): stores the states of idle sessions, the last
  // used first, so that they load without reading their tokens. Returns how many.
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
    std::optional<StoredCall> call;  // interrupted, or running elsewhere
    SessionRefusal held;             // kHeld: by another process
    SessionStorage::Claim claim;
    std::shared_ptr<const ClaimLease> lease;  // of the claim; null: there is none
    SharedModel model;                        // null: it is not loaded
  };
  // kNone, kNotFound, kDamaged, kStore...
  SessionRefusal read_row(const std::string& id, const Owner& owner, FoundSession& stored);
  // The same for an answer of the storage; its claim is in `stored`, even if the row is refused.
  SessionRefusal decode_row(SessionStorage::Opened found, FoundSession& stored);
  // As open_call(); kStale: the copy in memory differs from the storage, and is dropped when the
  // lease ends.
  SessionRefusal try_open_call(SessionLease& lease, const SharedModel& model,
                               const IdempotencyKey& terms, OpenedCall& opened);
  // The same for a row that was read.
  SessionRefusal open_call_of(SessionLease& lease, const SharedModel& model,
                              const IdempotencyKey& terms, FoundSession& stored,
                              OpenedCall& opened);
  // The refusal for a session that a call has: while the store is away it cannot be released, so
  // the caller waits for the store.
  SessionRefusal busy_or_away(const SessionRefusal& refusal) const;
  SharedModel model_of(const SessionStorage::Row& row) const;
  bool has_expired(const SessionStorage::Row& row) const;
  // As load(), also for one that is in memory and has expired.
  SessionManager::LoadResult load_current(const std::string& id, const Owner& owner);
  // Loads a session that is not in memory. kStale: another server wrote between the reads of its
  // row and its tokens, as nothing is claimed meanwhile.
  SessionManager::LoadResult restore(const std::string& id, const Owner& owner);
  // The same for a row that was read.
  SessionManager::LoadResult restore_row(const std::string& id, const Owner& owner,
                                         const FoundSession& stored);
  // Drops a copy in memory that differs from a storage to which others write, too.
  SessionRefusal drop_if_stale(const std::string& id, const Owner& owner);
  // Prepares to run a call again that has the tokens from `start` to the session's position:
  // rewinds the session to `at`, the first token that its client, or a stop, needs again.
  SessionRefusal replay(SessionLease& lease, const SessionStorage::Row& row, std::int64_t start,
                        std::int64_t at, std::uint64_t seed, OpenedCall& opened);
  // Reads the latest readable state with `least` to `most` tokens; position 0: there is none.
  PagedState read_state(const SessionStorage::Row& row, std::int64_t least, std::int64_t most);
  // As SessionManager::rewind, from the nearest state in memory or in the storage.
  SessionRefusal rewind(SessionLease& lease, const SessionStorage::Row& row, std::int64_t position,
                        const std::optional<Digest>& expected);
  // Reads the session's tokens, and the latest state that leads to them.
  SessionRefusal read_image(const FoundSession& found, SessionImage& image);
  // Adds the writes that store the state of an idle session, if that pays, and release its claim.
  bool store_idle_state(const std::string& id, const Owner& owner, WriteBatch& batch);
  // Puts the state of a session whose claim the caller has, for a write to name; empty if there is
  // no room. stored: as for PagedState::save.
  StoredStates put_state(SessionLease& lease, const StoredStates& stored);
  SessionError create_row(const NewSession& row);
  // Stores the state of a new row, so that it loads without reading its tokens.
  bool store_state(const std::string& id, const Owner& owner, const PagedState& state);
  SessionInfo info_of(const SessionStorage::Row& row) const;
  // True if another process has continued a session that is in memory.
  bool is_stale(const SessionStorage::Row& row, const SessionInfo& info) const;
  void add_row_info(const SessionStorage::Row& row, SessionInfo& info) const;
  // Waits; the batch ends with the release of the claim. If that fails sweep() releases it.
  SessionError commit_and_release(WriteBatch& batch, const std::string& id, const Owner& owner,
                                  const SessionStorage::Claim& claim);
  std::chrono::system_clock::time_point expiry(const SessionOptions& session) const;

  SessionStorage& storage_;
  SessionManager& sessions_;
  const ModelRegistry& models_;
  const Clock& clock_;
  const Options options_;

  // Locked to load, change or remove a session while no call has it.
  KeyedMutex locks_;
  std::atomic<std::uint64_t> from_slot_{0}, from_tokens_{0}, resumed_{0}, states_stored_{0};
  std::atomic<std::uint64_t> replayed_cold_{0}, replayed_rewound_{0}, replayed_resumed_{0};
  std::atomic<std::uint64_t> numerics_changed_{0};
  PendingReleases lost_claims_;
  CallWriter writer_;
  WorkThreads threads_;  // last: their work uses the members above
};

}  // namespace lintel
