// SPDX-License-Identifier: Apache-2.0
// RequestQueue: what the workers of one model share: the queue, the load, and the alarm clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/notification.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/sequence_group.h"
#include "server/sessions/session_memory.h"

namespace lintel {

// The caller that has the fewest rows is first; of those, the one whose last turn was longest ago.
struct TurnOrder {
  bool operator()(const QueuedCaller* a, const QueuedCaller* b) const;
};

// A caller that has requests in the queue or with its workers. Guarded by the queue's mutex.
struct QueuedCaller {
  using Requests = std::list<std::unique_ptr<SequenceGroup>>;

  bool waits() const { return !ran.empty() || !queued.empty(); }

  const std::string* name = nullptr;
  std::size_t requests = 0;  // that have not gone
  int rows = 0;              // of those with workers
  std::uint64_t last_turn = 0;
  // Requests that wait for rows, in the order of their turns: first those that had some already.
  Requests ran, queued;
  Requests held;  // new ones that wait for memory: no worker takes them
  std::set<QueuedCaller*, TurnOrder>::node_type aside;  // while it is not among those that wait
  // See RequestQueue::who_yields.
  const SequenceGroup* last = nullptr;
  bool reads = false;
};

// Thread-safe. Requests that wait for rows: new ones, and those that paused or gave their rows to
// others. Callers take turns (GenerationRequest::caller): the next request is one of the caller
// that has the fewest rows now. Where there are not enough rows, callers that have more give some
// up, at the latest after kTurn (who_yields). Within a caller first come, first served; what ran
// before goes first, for it holds memory already.
//
// A request that is too wide for the rows that are free is not overtaken on the worker with the
// fewest running rows, which takes nothing else until it fits, so it cannot starve; on the others
// it is, so it does not hold up those after it.
//
// A request that waits for memory is in the queue, but not among those that wait for rows, until
// its memory is reserved (MemoryLine); then it comes last among its caller's.
//
// The questions of a busy worker in every step take no lock while there is nothing to do. Only
// push() allocates; moving requests needs no memory.
class RequestQueue final : public MemoryWaiter {
 public:
  static constexpr std::size_t kMostQueuedBytes = std::size_t{256} << 20;
  // The time for which a request keeps its rows though callers wait that have fewer, if its own
  // caller would otherwise have fewer than they.
  static constexpr std::chrono::milliseconds kTurn{50};

  // Holds at most `capacity` new requests, and no more than `capacity_bytes` held by them all
  // (SequenceGroup::held_bytes), but for the first: one request always may. least_share: a worker's
  // fair share of the load is at least so many rows.
  RequestQueue(std::size_t capacity, int num_workers, std::size_t capacity_bytes = kMostQueuedBytes,
               int least_share = 1);
  ~RequestQueue() override;

  using Requests = QueuedCaller::Requests;

  enum class Push { kAccepted, kFull, kClosed };
  // Takes the request only when it returns kAccepted. Throws std::bad_alloc, and then nothing has
  // happened.
  Push push(std::unique_ptr<SequenceGroup>& request);
  // Pops the next request for a worker (from 0) of `max_rows` rows, if one fits and the worker has
  // less than its fair share of the load, ceil((running + waiting) / workers) in rows, and no other
  // that has some is below least_share. Null otherwise.
  // A popped request counts as running.
  std::unique_ptr<SequenceGroup> pop(int worker, int max_rows);
  // The one of a worker's `running` requests, in the order in which they got their rows, that has
  // to give them up so that pop() has one of another caller: the last one of the caller that has
  // the most rows, if that still has as many as the other then, or has had its turn. Null: none.
  // Prompts are read to their end, one a caller on at most half of the rows: in turns of 50 ms a
  // long one among many callers would have its first token last of all, however long it has waited.
  SequenceGroup* who_yields(int worker, int max_rows,
                            std::span<const std::unique_ptr<SequenceGroup>> running, TimePoint now);
  // Takes back what was popped: as its caller's next, or after others that ran before.
  enum class Place { kNext, kBehind };
  void give_back(std::unique_ptr<SequenceGroup> request, Place place, TimePoint now) noexcept;
  // Sets the number of rows that a request has which was popped.
  void set_rows(SequenceGroup& request, int rows) noexcept;
  // Requests that were cancelled or expired while they waited.
  Requests take_lost(TimePoint now) noexcept;
  Requests take_all() noexcept;
  // No more requests are accepted.
  void close();
  bool closed() const;
  // New requests that wait, for memory too.
  std::size_t size() const { return size_.load(); }
  // Some of those that wait for memory have got it.
  void on_memory() noexcept override;
  // Requests that wait for memory get none: take_lost() has them, and no more are accepted.
  void drop_held();
  bool has_waiting() const { return num_waiting_.load() > 0; }
  // The number of callers that have requests that have not gone.
  std::size_t num_callers() const { return num_callers_.load(); }
  // Notified when requests have left the queue, and when it was closed.
  CapacityListeners& waiting_room() { return waiting_room_; }

  // Prompts that requests of these workers read.
  PrefillCoalescer& readings() { return readings_; }

  // Sets the number of rows that a worker runs now.
  void set_running_rows(int worker, int rows) {
    running_rows_[static_cast<std::size_t>(worker)].store(rows);
  }

  // Notes that Scheduler::cancel has set a RequestControl's `cancelled`, or an adapter has ended:
  // the queue may hold such a request. (It may also come later; push() and give_back() look.)
  void note_cancel();
  // Ends the waits of all workers that began before this call.
  void wake();
  // The same for at most `workers` of those that wait now.
  void call_idle(std::size_t workers);
  // Counts the wakes. A worker reads it before it looks for work, so that it misses none.
  std::uint64_t wakes() const { return wakes_.load(); }
  // The time at which the first of the waiting requests expires.
  std::optional<TimePoint> next_deadline() const;
  // Waits until there was a wake after `seen`, next_deadline(), or `until`.
  void wait(std::uint64_t seen, std::optional<TimePoint> until, const Clock& clock);

 private:
  friend class CallerTurn;

  // A waiting request.
  struct Spot {
    QueuedCaller* caller = nullptr;  // null: none
    Requests* line = nullptr;
    Requests::iterator at;
  };

  std::unique_ptr<SequenceGroup> take_next(int worker, int max_rows) EXCLUDES(mutex_);
  // The next request; where it is too wide for `free_rows`, on all workers but one another that
  // fits.
  Spot find_next(int worker, int free_rows) REQUIRES(mutex_);
  static Spot first_of(QueuedCaller& caller);
  // A worker's fair share of the load.
  int share_of_load() const REQUIRES(mutex_);
  // True if it is another worker's turn to fill its share: one with more rows than this one, but
  // fewer than least_share.
  bool fills_another(int worker, int max_rows) const REQUIRES(mutex_);
  QueuedCaller& caller_named(const std::string& name) REQUIRES(mutex_);
  // A caller's turn depends on what changes between these two.
  void set_aside(QueuedCaller& caller) REQUIRES(mutex_);
  void put_back(QueuedCaller& caller) REQUIRES(mutex_);
  // Returns how many rows they would have taken.
  int move_lost(Requests& line, TimePoint now, Requests& lost) REQUIRES(mutex_);
  // Lets workers take the requests that have got their memory.
  void queue_granted() EXCLUDES(mutex_);
  void change_rows(CallerTurn& turn, int rows) REQUIRES(mutex_);
  void leave(CallerTurn& turn) noexcept EXCLUDES(mutex_);
  // Called after the earliest of the waiting requests has left.
  void update_deadline() REQUIRES(mutex_);
  // The worker that saves its rows for the first request while that fits nowhere.
  int saving_worker() const;

  const std::size_t capacity_;
  const std::size_t capacity_bytes_;
  const int least_share_;

  // Mirrors of the queue, written under the mutex and read without.
  std::atomic<std::size_t> size_{0};
  std::atomic<std::size_t> num_waiting_{0};  // those that ran included
  std::atomic<std::size_t> num_held_{0};     // not among those above
  std::atomic<std::size_t> num_callers_{0};
  std::atomic<std::int64_t> next_deadline_;  // ticks of TimePoint
  std::atomic<bool> may_hold_cancelled_{false};
  std::atomic<bool> may_hold_granted_{false};
  std::atomic<bool> drops_held_{false};
  std::atomic<std::uint64_t> wakes_{0};
  std::vector<std::atomic<int>> running_rows_;  // of each worker

  CapacityListeners waiting_room_;
  PrefillCoalescer readings_{[this] { wake(); }};
  mutable Mutex mutex_;
  CondVar woken_;
  std::map<std::string, QueuedCaller> callers_ GUARDED_BY(mutex_);
  std::set<QueuedCaller*, TurnOrder> waiting_ GUARDED_BY(mutex_);
  std::uint64_t last_turn_ GUARDED_BY(mutex_) = 0;
  Requests spare_ GUARDED_BY(mutex_);  // nodes of those that were popped, without them
  int waiting_rows_ GUARDED_BY(mutex_) = 0;
  std::size_t queued_bytes_ GUARDED_BY(mutex_) = 0;  // of new requests
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
