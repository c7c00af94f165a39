// SPDX-License-Identifier: Apache-2.0
// run_in_parallel: long work of many parts, as at load. Steps of a model have StepThreadPool.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>

namespace lintel {

// Numbers of the parts of some work, each given once. Threads: any.
class WorkParts {
 public:
  explicit WorkParts(std::size_t count) : count_(count) {}
  // Nothing when all have been given.
  std::optional<std::size_t> next() {
    const std::size_t part = next_.fetch_add(1, std::memory_order_relaxed);
    return part < count_ ? std::optional(part) : std::nullopt;
  }
  void end() { next_.store(count_, std::memory_order_relaxed); }

 private:
  const std::size_t count_;
  std::atomic<std::size_t> next_{0};
};

// Calls work(parts) on the caller's thread and on others, which are started for it: on most_threads
// in all, but no more than there are parts. Returns when all have returned. What a call throws is
// thrown once all have, and ends the parts.
void run_in_parallel(std::size_t parts, std::size_t most_threads,
                     const std::function<void(WorkParts&)>& work);

}  // namespace lintel
