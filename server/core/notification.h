// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace lintel {

// Notification: what one thread waits at, and any other rings.

// Thread-safe; one thread waits. A ring without a waiter is kept for the next wait.
class Notification {
 public:
  void ring() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    rung_ = true;
    changed_.notify_all();
  }

  // Returns after a ring since the last wait, or at `until`, of real time.
  void wait(std::optional<TimePoint> until) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!rung_) {
      if (!until) {
        changed_.wait(mutex_);
        continue;
      }
      const Duration left = *until - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) break;
      changed_.wait_for(mutex_, left);
    }
    rung_ = false;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool rung_ GUARDED_BY(mutex_) = false;
};

// CapacityListeners: waiters that found no room for a request, notified when there may be some.

class CapacityListener {
 public:
  virtual ~CapacityListener() = default;
  // There may be room: the waiter may try again at once, in this call. Called by the thread that
  // made the room, which holds no lock.
  virtual void on_room() noexcept = 0;
};

// Thread-safe. A waiter that was refused joins, tries once more, and only then waits: it is
// notified of room that is made at any time after its last try.
class CapacityListeners {
 public:
  // The waiter is notified once; to wait for longer it joins again. Throws std::bad_alloc.
  void join(std::weak_ptr<CapacityListener> waiter) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    waiting_.insert(std::move(waiter));
  }

  // Notifies all that have joined. While another thread does so, that thread notifies them again
  // instead: so room that a notified waiter makes causes no recursion. REQUIRES: the caller holds
  // no lock.
  void tell() noexcept EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      more_room_ = true;
      if (telling_) return;
      telling_ = true;
    }
    while (true) {
      Waiters notified;
      {
        MutexLock lock(mutex_);
        telling_ = std::exchange(more_room_, false);
        if (!telling_) return;
        notified.swap(waiting_);
      }
      for (const std::weak_ptr<CapacityListener>& each : notified) {
        if (const std::shared_ptr<CapacityListener> waiter = each.lock()) waiter->on_room();
      }
    }
  }

 private:
  using Waiters =
      std::set<std::weak_ptr<CapacityListener>, std::owner_less<std::weak_ptr<CapacityListener>>>;

  Mutex mutex_;
  Waiters waiting_ GUARDED_BY(mutex_);
  bool telling_ GUARDED_BY(mutex_) = false;    // a thread is in tell()
  bool more_room_ GUARDED_BY(mutex_) = false;  // since it took those that it notifies
};

}  // namespace lintel
