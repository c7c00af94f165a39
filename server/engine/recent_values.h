// Windows: the positions at which a state is reset.
// RecentValues: the last tokens of one sequence, which a state reads again after a reset.
// RecentCounts: how often each token is among them, for penalties that count no others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/tensor.h"

namespace lintel {

// Where the state begins that takes the token at this position. window: even, at least 2; 0: none.
inline std::int64_t window_origin(std::int64_t window, std::int64_t position) {
  if (window == 0 || position < window) return 0;
  const std::int64_t half = window / 2;
  return (position - window) / half * half + half;
}

// How often the state is reset within the tokens [begin, end).
inline std::int64_t window_restarts(std::int64_t window, std::int64_t begin, std::int64_t end) {
  if (window == 0 || end <= begin) return 0;
  const std::int64_t before = begin == 0 ? 0 : window_origin(window, begin - 1);
  return (window_origin(window, end - 1) - before) / (window / 2);
}

// Of known tokens [begin, end) those that no later token depends on: the first ones.
inline std::int64_t window_skips(std::int64_t window, std::int64_t begin, std::int64_t end) {
  return end <= begin ? 0 : std::max<std::int64_t>(window_origin(window, end) - begin, 0);
}

// A ring by absolute position. Allocates in begin() and when copied; zeroes what it held.
class RecentValues {
 public:
  RecentValues() = default;
  RecentValues(const RecentValues&) = default;
  RecentValues(RecentValues&&) = default;
  RecentValues& operator=(const RecentValues&) = default;
  ~RecentValues() { zero_memory(std::span(ring_)); }

  // From now on the last `count` tokens. REQUIRES: it held none.
  void begin(std::int64_t count) { ring_.resize(static_cast<std::size_t>(count)); }
  // What one that holds so many takes, in bytes.
  static std::size_t bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(std::int32_t);
  }

  bool empty() const { return ring_.empty(); }
  void put(std::int64_t position, std::int32_t value) { ring_[index(position)] = value; }
  // REQUIRES: put() had this position, and none that is `count` or more after it.
  std::int32_t at(std::int64_t position) const { return ring_[index(position)]; }

 private:
  std::size_t index(std::int64_t position) const {
    return static_cast<std::size_t>(position) % ring_.size();
  }

  std::vector<std::int32_t> ring_;
};

// Of the last tokens of one sequence, and of fewer while it has fewer. Allocates in begin() and
// when copied; zeroes what it held.
class RecentCounts {
 public:
  RecentCounts() = default;
  RecentCounts(const RecentCounts&) = default;
  RecentCounts(RecentCounts&&) = default;
  RecentCounts& operator=(const RecentCounts&) = default;
  ~RecentCounts() { zero_memory(std::span(counts_)); }

  // From now on of the last `window` tokens, each in 0 .. vocab_size-1. REQUIRES: it had none.
  void begin(std::int64_t window, int vocab_size) {
    window_ = static_cast<std::size_t>(window);
    last_.begin(window);
    counts_.resize(static_cast<std::size_t>(vocab_size));
  }
  // What one takes after that, in bytes.
  static std::size_t bytes(std::int64_t window, int vocab_size) {
    return RecentValues::bytes(window) +
           static_cast<std::size_t>(vocab_size) * sizeof(std::uint32_t);
  }

  bool empty() const { return counts_.empty(); }
  // The next token of the sequence: the one that is `window` before it counts no more.
  void put(std::int32_t value) {
    const auto position = static_cast<std::int64_t>(num_values_);
    if (num_values_ >= window_) --counts_[static_cast<std::size_t>(last_.at(position))];
    last_.put(position, value);
    ++counts_[static_cast<std::size_t>(value)];
    ++num_values_;
  }
  std::span<const std::uint32_t> counts() const { return counts_; }  // [V]

 private:
  std::size_t window_ = 0;
  std::size_t num_values_ = 0;  // that were put
  RecentValues last_;
  std::vector<std::uint32_t> counts_;  // [V]
};

}  // namespace lintel
