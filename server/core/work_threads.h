// WorkThreads: threads that may wait, and the work that waits for them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "server/core/mutex.h"

namespace lintel {

// First come, first served. Thread-safe.
class WorkThreads {
 public:
  // threads: 0: the caller does the work itself. most_queued: of work that has not started.
  WorkThreads(int threads, std::size_t most_queued);
  ~WorkThreads();  // does what is queued

  // False: too much is waiting. What `work` throws on a thread is noted and ends it alone: the work
  // itself has to answer its waiters.
  bool run(std::function<void()> work) EXCLUDES(mutex_);
  std::size_t queued() const EXCLUDES(mutex_);

 private:
  void work_until_closed() EXCLUDES(mutex_);

  const std::size_t most_queued_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace lintel
