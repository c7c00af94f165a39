// ThreadFailures: exceptions that reached the loop of a thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <utility>

namespace lintel {

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
  kHousekeeping,
  kListener,  // accepts gRPC connections
  kMetrics,   // answers /metrics, /healthz and /readyz
  kSignals,
};
// As the metric's label has them.
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

}  // namespace lintel
