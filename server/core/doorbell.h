// Doorbell: what one thread waits at, and any other rings.
#pragma once

#include <optional>

#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace lintel {

// Thread-safe; one thread waits. A ring without a waiter is kept for the next wait.
class Doorbell {
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

}  // namespace lintel
