// SPDX-License-Identifier: Apache-2.0
// CallWriter: the thread that writes down what calls on durable sessions read and draw.
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

// WriteBatch: writes with their bodies, and how a storage's answers are waited for.

// Used by one thread.
class WriteBatch {
 public:
  void add(SessionStorage::Write write, StorageBytes body);
  bool empty() const { return writes_.empty(); }
  std::size_t size() const { return writes_.size(); }
  // Only the first `size` writes stay.
  void cut(std::size_t size);
  // `this` lives until `done` was called. Once.
  void commit(SessionStorage& storage, SessionStorage::Done done);
  // Waits. The first outcome that is not kDone, if there is one.
  SessionError commit_and_wait(SessionStorage& storage);

 private:
  std::vector<SessionStorage::Write> writes_;
  std::deque<StorageBytes> bodies_;
};

// What a storage's outcome means to who asked for the session.
SessionRefusal refusal_of(SessionError outcome);
// The same; of one that is held, by whom and for how long.
SessionRefusal refusal_of(const SessionStorage::Opened& opened);

// PendingReleases: claims on sessions whose release failed.

// A full disk takes no write, not even the one that gives a session back. Thread-safe.
class PendingReleases {
 public:
  void add(std::string id, Owner owner, const SessionStorage::Claim& claim);
  // Gives one back that nothing was written under, without waiting; what fails is one of these. The
  // storage may answer when this is gone: then the lease ends it.
  void give_back(SessionStorage& storage, const SessionStorage::Row& row,
                 const SessionStorage::Claim& claim);
  // Waits. Tries again to give them back.
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

// Many calls' tokens in one commit. A call's tokens are in its session's history already, so
// workers do nothing for this.
//
// Thread-safe.
class CallWriter {
 public:
  struct Options {
    Duration interval{};                          // tokens of several TOKEN calls gather so long
    Duration lazy_interval{};                     // of INPUT calls so often, or
    std::int64_t lazy_tokens = 0;                 // once they are so many
    Duration patience = std::chrono::seconds(1);  // with a store that is full or away
    ParkPolicy park{};                            // when states are stored
    std::chrono::seconds expire_after{};
    bool has_thread = true;  // else write() is called by its owner
  };

  // All outlive it.
  CallWriter(SessionStorage& storage, PendingReleases& lost, const Clock& clock,
             const Options& options);
  // Ends the calls that are left. REQUIRES: none runs.
  ~CallWriter();

  // The call's beginning is queued when it returns; that of a TOKEN call goes with its first
  // tokens, or after the interval.
  void add(std::shared_ptr<PersistentRequest> call) EXCLUDES(mutex_);
  // A call has something to write, or to write again.
  void wake() EXCLUDES(mutex_);
  // The client of a TOKEN call waits for its tokens to be durable. Those of one such call are
  // written at once, those of several every `interval`, and of more than 16 up to four times as
  // seldom, for a record costs as much as the token in it; but the first ones of a call always with
  // the next `interval`. Asked in every step; takes the lock only for the first request since the
  // last write.
  void wake_for_tokens() EXCLUDES(mutex_);
  // Every call that can be repeated, and each that comes later, ends after its step: see
  // PersistentRequest::hand_over.
  void hand_over() EXCLUDES(mutex_);
  bool hands_over() const { return hands_over_.load(); }
  // The call is over. It uses the writer no more: this may be the last one that the writer waits
  // for to be destroyed.
  void remove(const PersistentRequest& call) EXCLUDES(mutex_);
  // What is due is queued when it returns.
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
  // For how long tokens of so many calls gather.
  Duration gather_time(std::size_t streams) const;
  // Returns when something may be due. `began`: when it was written last.
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
  std::thread thread_;  // last: it uses the rest
};

}  // namespace lintel
