// RequestQueue: what the workers of one model share: the queue, the load, and the alarm clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/base/thread_annotations.h"
#include "server/base/waiting_room.h"
#include "server/prefix/prefix_readings.h"
#include "server/scheduler/running_request.h"

namespace lintel {

// Thread-safe. First in, first out, but for a request that is too wide for the rows that are free:
// the worker with the fewest running rows takes nothing else until it fits, so it cannot starve,
// and on the others it is overtaken, so it does not hold up those behind it.
// What a busy worker asks in every step takes no lock while there is nothing to do. Only push()
// asks for memory: whatever takes requests out works without any.
class RequestQueue {
 public:
  static constexpr std::size_t kMostQueuedBytes = std::size_t{256} << 20;

  // At most `capacity` requests, and no more than `capacity_bytes` held by them all
  // (RunningRequest::held_bytes), but for the first: one request always may.
  RequestQueue(std::size_t capacity, int num_workers,
               std::size_t capacity_bytes = kMostQueuedBytes);

  using Requests = std::list<std::unique_ptr<RunningRequest>>;

  enum class Push { kAccepted, kFull, kClosed };
  // Takes the request only when it returns kAccepted. Throws std::bad_alloc, and then nothing has
  // happened.
  Push push(std::unique_ptr<RunningRequest>& request);
  // The next request for a worker (from 0) of `max_rows` rows, if one fits and the worker has less
  // than its fair share of the load, ceil((running + queued) / workers) in rows. Null otherwise.
  // What is popped counts as running.
  std::unique_ptr<RunningRequest> pop(int worker, int max_rows);
  // Requests that were cancelled or expired while they waited.
  Requests take_lost(TimePoint now) noexcept;
  Requests take_all() noexcept;
  // No more requests are accepted.
  void close();
  bool closed() const;
  std::size_t size() const { return size_.load(); }
  // Told when requests have left the queue, and when it was closed.
  WaitingRoom& waiting_room() { return waiting_room_; }

  // Prompts that requests of these workers read.
  PrefixReadings& readings() { return readings_; }

  // How many rows a worker runs now.
  void set_running_rows(int worker, int rows) {
    running_rows_[static_cast<std::size_t>(worker)].store(rows);
  }

  // Scheduler::cancel has set a RequestControl's `cancelled`, or an adapter has ended: the queue
  // may hold such a request. (It may also be pushed later; push() looks.)
  void note_cancel();
  // Ends the waits of all workers that began before this call.
  void wake();
  // The same for at most `workers` of those that wait now.
  void call_idle(std::size_t workers);
  // Counts the wakes. A worker reads it before it looks for work, so that it misses none.
  std::uint64_t wakes() const { return wakes_.load(); }
  // When the first of the queued requests expires.
  std::optional<TimePoint> next_deadline() const;
  // Waits until there was a wake after `seen`, next_deadline(), or `until`.
  void wait(std::uint64_t seen, std::optional<TimePoint> until, const Clock& clock);

 private:
  std::unique_ptr<RunningRequest> take_next(int worker, int max_rows) EXCLUDES(mutex_);
  // After the queue has changed.
  void update_mirrors() REQUIRES(mutex_);
  // The worker that saves its rows for the first request while that fits nowhere.
  int saving_worker() const;

  const std::size_t capacity_;
  const std::size_t capacity_bytes_;

  // Mirrors of the queue, written under the mutex and read without.
  std::atomic<std::size_t> size_{0};
  std::atomic<std::int64_t> next_deadline_;  // ticks of TimePoint
  std::atomic<bool> may_hold_cancelled_{false};
  std::atomic<std::uint64_t> wakes_{0};
  std::vector<std::atomic<int>> running_rows_;  // of each worker

  WaitingRoom waiting_room_;
  PrefixReadings readings_{[this] { wake(); }};
  mutable Mutex mutex_;
  CondVar woken_;
  Requests queue_ GUARDED_BY(mutex_);
  int queued_rows_ GUARDED_BY(mutex_) = 0;
  std::size_t queued_bytes_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
