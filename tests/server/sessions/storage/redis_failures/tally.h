// SPDX-License-Identifier: Apache-2.0
// What becomes of the writes of a campaign.
#pragma once

#include <atomic>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <string>
#include <vector>

namespace lintel::testing {

// Thread-safe.
struct Tally {
  std::atomic<std::uint64_t> acknowledged{0};  // writes
  std::atomic<std::uint64_t> tokens{0};        // in them
  std::atomic<std::uint64_t> unanswered{0};    // tries whose outcome was unknown
  std::atomic<std::uint64_t> refused{0};       // fenced, rolled back: the claim was lost
  std::atomic<std::uint64_t> stale{0};         // claims at a master that was none any more
  std::atomic<std::uint64_t> rolled_back{0};   // sessions found behind what was acknowledged
  std::atomic<std::uint64_t> sessions{0};

  void is_wrong(const std::string& what) {
    const std::lock_guard lock(mutex_);
    wrong_.push_back(what);
    std::cout << "WRONG: " << what << std::endl;  // while others still run
  }
  std::vector<std::string> wrong() const {
    const std::lock_guard lock(mutex_);
    return wrong_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> wrong_;
};

}  // namespace lintel::testing
