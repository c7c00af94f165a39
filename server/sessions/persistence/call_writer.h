// SPDX-License-Identifier: Apache-2.0
// CallWriter: the thread that stores the tokens of calls on durable sessions.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/persistence/paged_state.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/session_options.h"
#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

// WriteBatch: writes with their bodies, committed together.

// Used by one thread.
class WriteBatch {
 public:
  void add(SessionStorage::Write write, StorageBytes body);
  bool empty() const { return writes_.empty(); }
  std::size_t size() const { return writes_.size(); }
  // Keeps only the first `size` writes.
  void cut(std::size_t size);
  // Commits the writes, once. `this` lives until `done` was called.
  void commit(SessionStorage& storage, SessionStorage::Done done);
  // Waits. Returns the first outcome that is not kNone, if there is one.
  SessionError commit_and_wait(SessionStorage& storage);

 private:
  std::vector<SessionStorage::Write> writes_;
  std::deque<StorageBytes> bodies_;
};

// The refusal for a caller that corresponds to a storage's outcome.
SessionRefusal refusal_of(SessionError outcome);
// The same; for a held session with the holder and the time.
SessionRefusal refusal_of(const SessionStorage::Opened& opened);

// PendingReleases: claims on sessions whose release failed.

// A full disk takes no write, not even the one that gives a session back. Thread-safe.
class PendingReleases {
 public:
  void add(std::string id, Owner owner, const SessionStorage::Claim& claim);
  // Releases a claim that nothing was written under, without waiting; if that fails, it is added.
  // The storage may answer after the object is gone: then the lease ends the claim.
  void give_back(SessionStorage& storage, const SessionStorage::Row& row,
                 const SessionStorage::Claim& claim);
  // Waits. Tries again to release all claims.
  void give_back(SessionStorage& storage);

 private:
  struct Lost {
    std::string id;
    Owner owner;
    SessionStorage::Claim claim;
  };

  struct Book {
    Mutex mutex;
    std::vector<Lost> lost GUARDED_BY(mutex);

    void add(Lost claim) EXCLUDES(mutex) {
      MutexLock lock(mutex);
      lost.push_back(std::move(claim));
    }
  };

  const std::shared_ptr<Book> book_ = std::make_shared<Book>();
};

class PersistentRequest;

// Writes the tokens of many calls in one commit. They are in the sessions' histories already, so
// workers do nothing for this.
//
// Thread-safe.
class CallWriter {
 public:
  struct Options {
    Duration interval{};                          // to gather tokens of several TOKEN calls
    Duration lazy_interval{};                     // between writes of an INPUT call, or
    std::int64_t lazy_tokens = 0;                 // when it has so many new tokens
    Duration patience = std::chrono::seconds(1);  // with a store that is full or away
    ParkPolicy park{};                            // the rule for storing states
    std::chrono::seconds expire_after{};
    bool has_thread = true;  // else write() is called by its owner
  };

  // All outlive it.
  CallWriter(SessionStorage& storage, PendingReleases& lost, const Clock& clock,
             const Options& options);
  // Ends the calls that are left. REQUIRES: none runs.
  ~CallWriter();

  // Adds a call. Its beginning is queued on return; that of a TOKEN call is written with its first
  // tokens, or after the interval.
  void add(std::shared_ptr<PersistentRequest> call) EXCLUDES(mutex_);
  // Wakes the thread for a call that has something to write, perhaps again.
  void wake() EXCLUDES(mutex_);
  // Wakes the thread for a TOKEN call, whose client waits for its tokens to be durable. Tokens of a
  // single such call are written at once, those of several every `interval`, and of more than 16 up
  // to four times as seldom, for a record costs as much as the token in it; but the first ones of a
  // call always with the next `interval`. Called in every step; takes the lock only for the first
  // request since the last write.
  void wake_for_tokens() EXCLUDES(mutex_);
  // Ends every call that can be repeated, now and later, after its step: see
  // PersistentRequest::hand_over.
  void hand_over() EXCLUDES(mutex_);
  bool hands_over() const { return hands_over_.load(); }
  // Removes a call that is over and no longer uses the writer: it may be the last one that the
  // writer's destructor waits for.
  void remove(const PersistentRequest& call) EXCLUDES(mutex_);
  // Queues all writes that are due.
  void write() EXCLUDES(mutex_);

  SessionStorage& storage() const { return storage_; }
  PendingReleases& lost_claims() const { return lost_; }
  const Clock& clock() const { return clock_; }
  const Options& options() const { return options_; }
  std::uint64_t states_stored() const { return states_stored_.load(); }
  void count_state() { states_stored_.fetch_add(1); }

 private:
  using Calls = std::vector<std::shared_ptr<PersistentRequest>>;

  void write_until_closed() EXCLUDES(mutex_);
  void write(const Calls& calls, bool all_tokens);
  // The time to gather tokens of so many calls.
  Duration gather_time(std::size_t streams) const;
  // Waits until something may be due. `began`: the time of the last write.
  void wait(TimePoint began, std::size_t streams) REQUIRES(mutex_);

  SessionStorage& storage_;
  PendingReleases& lost_;
  const Clock& clock_;
  const Options options_;
  std::atomic<std::uint64_t> states_stored_{0};

  Mutex mutex_;
  CondVar woken_;
  Calls calls_ GUARDED_BY(mutex_);
  bool is_woken_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> hands_over_{false};
  std::atomic<bool> has_tokens_{false};
  bool closing_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses the members above
};

}  // namespace lintel
