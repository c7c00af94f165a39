// RecentValues: the last values of one sequence, for a state that begins anew from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/base/tensor.h"

namespace lintel {

// A ring by absolute position. Allocates in begin() and when copied; zeroes what it held.
class RecentValues {
 public:
  RecentValues() = default;
  RecentValues(const RecentValues&) = default;
  RecentValues(RecentValues&&) = default;
  RecentValues& operator=(const RecentValues&) = default;
  ~RecentValues() { zero_memory(std::span(ring_)); }

  // From now on the last `count` values. REQUIRES: it held none.
  void begin(std::int64_t count) { ring_.resize(static_cast<std::size_t>(count)); }
  // What one that holds so many takes, in bytes.
  static std::size_t bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(std::int32_t);
  }

  bool empty() const { return ring_.empty(); }
  void put(std::int64_t position, std::int32_t value) { ring_[index(position)] = value; }
  // REQUIRES: put() had this position, and none that is `count` or more behind it.
  std::int32_t at(std::int64_t position) const { return ring_[index(position)]; }

 private:
  std::size_t index(std::int64_t position) const {
    return static_cast<std::size_t>(position) % ring_.size();
  }

  std::vector<std::int32_t> ring_;
};

}  // namespace lintel
