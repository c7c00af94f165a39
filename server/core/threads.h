// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/mutex.h"

namespace lintel {

// catch_exceptions(): an exception ends what it came from, and nothing beside it.

// Returns what `body` returns or, when it throws, what `caught` does, which is called while the
// exception is handled and may look at it. REQUIRES: `caught` throws nothing.
template <typename Body, typename Caught>
auto catch_exceptions(Body&& body, Caught&& caught) noexcept -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return std::forward<Caught>(caught)();
  }
}

// ThreadFailures: exceptions that reached the loop of a thread.

// Threads of the server that run until it ends, by what they do.
enum class ServerThread {
  kRedis,         // connections to Redis
  kNameLookup,    // addresses of Redis servers
  kRedisLeases,   // renews claims
  kStoreCommits,  // commits to the store in a directory
  kCallWriter,    // writes down what calls come to
  kStoreWork,     // calls that wait for the store
  kWorker,        // steps of a model
  kModelLoads,
  kModelDrains,
  kMaintenance,  // "housekeeping" in metrics
  kListener,     // accepts gRPC connections
  kMetrics,      // answers /metrics, /healthz and /readyz
  kSignals,
};
// Names in the metric's label.
inline constexpr const char* kServerThreadNames[] = {
    "redis",      "name_lookup", "redis_leases", "store_commits", "call_writer",
    "store_work", "worker",      "model_loads",  "model_drains",  "housekeeping",
    "listener",   "metrics",     "signals"};
inline constexpr std::size_t kNumServerThreads = std::size(kServerThreadNames);

// One for the process. Thread-safe; nothing of it throws.
class ThreadFailures {
 public:
  using Log = void (*)(const char* thread, const char* what) noexcept;

  static ThreadFailures& of_process() noexcept {
    static ThreadFailures failures;
    return failures;
  }

  // Null: no log. The function is called by the thread that failed.
  void log_with(Log log) noexcept { log_.store(log); }
  // Counts the exception that is being handled. REQUIRES: one is.
  void note(ServerThread thread) noexcept {
    counts_[static_cast<std::size_t>(thread)].fetch_add(1, std::memory_order_relaxed);
    const Log log = log_.load();
    if (log == nullptr) return;
    try {
      throw;
    } catch (const std::exception& error) {
      log(kServerThreadNames[static_cast<std::size_t>(thread)], error.what());
    } catch (...) {
      log(kServerThreadNames[static_cast<std::size_t>(thread)], "an unknown exception");
    }
  }
  std::uint64_t count(ServerThread thread) const noexcept {
    return counts_[static_cast<std::size_t>(thread)].load(std::memory_order_relaxed);
  }

 private:
  std::atomic<Log> log_{nullptr};
  std::array<std::atomic<std::uint64_t>, kNumServerThreads> counts_{};
};

// One turn of a thread's loop: an exception is noted and ends the turn, not the process. Returns
// whether the turn came to its end.
template <typename Turn>
bool survives(ServerThread thread, Turn&& turn) noexcept {
  try {
    std::forward<Turn>(turn)();
    return true;
  } catch (...) {
    ThreadFailures::of_process().note(thread);
    return false;
  }
}

// WorkThreads: threads that may wait, and the work that waits for them.

// First come, first served. Thread-safe.
class WorkThreads {
 public:
  // threads: 0: the caller does the work itself. most_queued: of work that has not started. Throws
  // std::system_error where the system has no more threads.
  WorkThreads(int threads, std::size_t most_queued);
  ~WorkThreads();  // does what is queued

  // False: too much is waiting. An exception of `work` on a thread is noted and ends it alone: the
  // work itself has to answer its waiters.
  bool run(std::function<void()> work) EXCLUDES(mutex_);
  std::size_t queued() const EXCLUDES(mutex_);

 private:
  void work_until_closed() EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);

  const std::size_t most_queued_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the rest
};

// The number of cores that this process may use.

// Processors that the threads of this process may run on, and no more than its container has time
// of: cgroup's quota (cpu.max, or cpu.cfs_quota_us), rounded up. At least 1.
int usable_cores();

// The quota's part: what the files below `root` say, rounded up; 0 where they say nothing.
int cores_of_quota(const std::filesystem::path& root);

}  // namespace lintel
