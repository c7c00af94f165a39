// ValueRing: values on their way from a worker to the thread that writes them down.
#pragma once

#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "server/history/value_source.h"

namespace lintel {

// One thread pushes, one takes. Nothing is allocated, locked or asked of the system after it was
// made.
class ValueRing {
 public:
  struct Entry {
    std::uint64_t call = 0;  // whose value it is, as both ends number calls
    std::int32_t value = 0;
    ValueSource source = ValueSource::kSampled;
  };
  static_assert(sizeof(Entry) == 16);

  // REQUIRES: `entries` is a power of two.
  explicit ValueRing(std::size_t entries = 64 * 1024)
      : entries_(std::make_unique<Entry[]>(entries)), mask_(entries - 1) {
    assert(std::has_single_bit(entries));
  }

  // False where it is full: the value was not taken.
  bool push(const Entry& entry) {
    const std::uint64_t end = end_.load(std::memory_order_relaxed);
    // The other end's count is read where the last one read leaves no room alone.
    if (end - begin_seen_ > mask_) {
      begin_seen_ = begin_.load(std::memory_order_acquire);
      if (end - begin_seen_ > mask_) return false;
    }
    entries_[end & mask_] = entry;
    end_.store(end + 1, std::memory_order_release);
    return true;
  }

  // Those that were pushed, oldest first, at most as many as fit. Returns how many.
  std::size_t take(std::span<Entry> to) {
    const std::uint64_t begin = begin_.load(std::memory_order_relaxed);
    const std::uint64_t there = end_.load(std::memory_order_acquire) - begin;
    const std::size_t count = there < to.size() ? there : to.size();
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = entries_[(begin + i) & mask_];
      entries_[(begin + i) & mask_] = {};  // values are somebody's text
    }
    begin_.store(begin + count, std::memory_order_release);
    return count;
  }

  std::size_t capacity() const { return mask_ + 1; }

 private:
  static constexpr std::size_t kCacheLine = 64;

  const std::unique_ptr<Entry[]> entries_;
  const std::uint64_t mask_;
  alignas(kCacheLine) std::atomic<std::uint64_t> end_{0};  // of all that were ever pushed
  std::uint64_t begin_seen_ = 0;                           // by the pushing thread
  alignas(kCacheLine) std::atomic<std::uint64_t> begin_{0};
};

}  // namespace lintel
