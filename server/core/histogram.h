// SPDX-License-Identifier: Apache-2.0
// Histogram: how often a figure fell into which bucket, written without locks. Knows nothing of who
// reads it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lintel {

// The counts of a histogram at one moment; several can be added up. `counts` has one more element
// than `bounds`, for values above the last bound.
struct HistogramSnapshot {
  std::vector<double> bounds;  // upper, inclusive
  std::vector<std::uint64_t> counts;
  double sum = 0;

  void add(const HistogramSnapshot& other) {
    if (counts.empty()) {
      *this = other;
      return;
    }
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum += other.sum;
  }
  std::uint64_t total() const {
    std::uint64_t all = 0;
    for (const std::uint64_t count : counts) all += count;
    return all;
  }
};

// One thread writes, any thread reads. An observation is a search among the bounds and two plain
// stores: no lock, no allocation, no cache line shared with another writer but by neglect.
template <std::size_t N>
class Histogram {
  static_assert(std::atomic<double>::is_always_lock_free);

 public:
  explicit constexpr Histogram(const std::array<double, N>& bounds) : bounds_(bounds) {}

  void observe(double value) {
    const auto bucket = static_cast<std::size_t>(
        std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
    bump(counts_[bucket], std::uint64_t{1});
    bump(sum_, value);
  }
  void observe(std::chrono::nanoseconds duration) {
    observe(std::chrono::duration<double>(duration).count());
  }

  HistogramSnapshot snapshot() const {
    HistogramSnapshot snapshot;
    snapshot.bounds.assign(bounds_.begin(), bounds_.end());
    for (const auto& count : counts_) {
      snapshot.counts.push_back(count.load(std::memory_order_relaxed));
    }
    snapshot.sum = sum_.load(std::memory_order_relaxed);
    return snapshot;
  }

 private:
  template <typename T>
  static void bump(std::atomic<T>& value, T by) {
    value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  const std::array<double, N> bounds_;
  std::array<std::atomic<std::uint64_t>, N + 1> counts_{};
  std::atomic<double> sum_{0};
};

}  // namespace lintel
