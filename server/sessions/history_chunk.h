// HistoryChunk: a stretch of a session's values, packed.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "model/core/tensor.h"
#include "server/sessions/digest.h"
#include "server/sessions/value_source.h"

namespace lintel {

// Values of `width` bytes each and two bits for where each came from, zeroed before they are freed.
// Not thread-safe: SessionHistory's mutex guards it, and one that is full is never written again.
class HistoryChunk {
 public:
  // Bytes that hold any value of a vocabulary: 1, 2 or 4.
  static std::size_t width_of(int vocab_size) {
    return vocab_size <= 1 << 8 ? 1 : vocab_size <= 1 << 16 ? 2 : 4;
  }
  static std::size_t bytes_of(std::size_t width, std::size_t capacity) {
    return width * capacity + (capacity + 3) / 4;
  }

  // before: digest of the history up to the first value here.
  HistoryChunk(std::size_t width, std::size_t capacity, const Digest& before)
      : width_(width),
        capacity_(capacity),
        before_(before),
        bytes_(std::make_unique<std::byte[]>(bytes_of(width, capacity))) {}
  ~HistoryChunk() { zero_memory(std::span(bytes_.get(), bytes_of(width_, capacity_))); }
  HistoryChunk(const HistoryChunk&) = delete;
  HistoryChunk& operator=(const HistoryChunk&) = delete;

  // Its first `count` values.
  std::shared_ptr<HistoryChunk> copy(std::size_t count) const {
    auto made = std::make_shared<HistoryChunk>(width_, capacity_, before_);
    std::memcpy(made->bytes_.get(), bytes_.get(), width_ * count);
    for (std::size_t i = 0; i < count; ++i) made->put_code(i, code(i));
    return made;
  }

  // The value at `i`, and where it came from; `new_match`: a match of stop strings begins with it.
  // REQUIRES: nothing was put there; i < capacity().
  void put(std::size_t i, std::int32_t value, ValueSource source, bool new_match) {
    assert(i < capacity_);
    const auto bits = static_cast<std::uint32_t>(value);
    for (std::size_t b = 0; b < width_; ++b) {
      bytes_[width_ * i + b] = static_cast<std::byte>(bits >> (8 * b));
    }
    put_code(i, new_match && source == ValueSource::kSampled ? kNewMatch
                                                             : static_cast<unsigned>(source));
  }

  std::int32_t value(std::size_t i) const {
    std::uint32_t bits = 0;
    for (std::size_t b = 0; b < width_; ++b) {
      bits |= std::to_integer<std::uint32_t>(bytes_[width_ * i + b]) << (8 * b);
    }
    return static_cast<std::int32_t>(bits);
  }
  ValueSource source(std::size_t i) const {
    return code(i) == kNewMatch ? ValueSource::kSampled : static_cast<ValueSource>(code(i));
  }
  bool new_match(std::size_t i) const { return code(i) == kNewMatch; }

  const Digest& before() const { return before_; }

 private:
  static constexpr unsigned kNewMatch = 3;  // a sampled value, with which a match begins

  unsigned code(std::size_t i) const {
    return std::to_integer<unsigned>(codes()[i / 4]) >> (2 * (i % 4)) & 3u;
  }
  void put_code(std::size_t i, unsigned code) {
    codes()[i / 4] |= static_cast<std::byte>(code << (2 * (i % 4)));
  }
  std::byte* codes() const { return bytes_.get() + width_ * capacity_; }

  const std::size_t width_, capacity_;
  const Digest before_;
  const std::unique_ptr<std::byte[]> bytes_;  // [capacity, width] values, [capacity / 4] codes
};

}  // namespace lintel
