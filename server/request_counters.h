// RequestCounters: how many calls of each method have ended, and how.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "server/methods.h"

namespace lintel {

inline constexpr std::size_t kNumStatusCodes = 17;  // OK .. UNAUTHENTICATED

// Thread-safe; no locks.
class RequestCounters {
 public:
  void count(Method method, int code) {
    const auto index = static_cast<std::size_t>(code);
    cell(method, index < kNumStatusCodes ? index : 2 /* UNKNOWN */)
        .fetch_add(1, std::memory_order_relaxed);
  }
  std::uint64_t get(Method method, std::size_t code) const {
    return counts_[static_cast<std::size_t>(method)][code].load(std::memory_order_relaxed);
  }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const auto& codes : counts_) {
      for (const auto& count : codes) sum += count.load(std::memory_order_relaxed);
    }
    return sum;
  }

 private:
  std::atomic<std::uint64_t>& cell(Method method, std::size_t code) {
    return counts_[static_cast<std::size_t>(method)][code];
  }
  std::array<std::array<std::atomic<std::uint64_t>, kNumStatusCodes>, kMethods.size()> counts_{};
};

}  // namespace lintel
