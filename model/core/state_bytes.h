// SPDX-License-Identifier: Apache-2.0
// What a sequence remembers as bytes in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "model/core/errors.h"

namespace lintel {

// Where the state of a sequence is written to, and where it is read from again.

// One thread's. What it throws leaves the state as it was.
class StateWriter {
 public:
  virtual ~StateWriter() = default;

  template <typename T>
  void values(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    write(std::as_bytes(values));
  }
  template <typename T>
  void value(const T& value) {
    values(std::span<const T>(&value, 1));
  }

 private:
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// Reads what a StateWriter wrote, in the same pieces. One thread's.
class StateReader {
 public:
  virtual ~StateReader() = default;

  template <typename T>
  void values(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    read(std::as_writable_bytes(values));
  }
  template <typename T>
  T value() {
    T value{};
    values(std::span<T>(&value, 1));
    return value;
  }

 private:
  // Fills `bytes`. Throws ModelError where there are not as many.
  virtual void read(std::span<std::byte> bytes) = 0;
};

// Appends to `bytes`, which outlives it. Reserve SequenceState::saved_bytes() before: a vector that
// grows frees its old memory without zeroing it, and that held a session's data.
class StateByteWriter final : public StateWriter {
 public:
  explicit StateByteWriter(std::vector<std::byte>& bytes) : bytes_(bytes) {}

 private:
  void write(std::span<const std::byte> from) override {
    bytes_.insert(bytes_.end(), from.begin(), from.end());
  }

  std::vector<std::byte>& bytes_;
};

// Counts bytes and drops them.
class StateByteCount final : public StateWriter {
 public:
  std::size_t bytes() const { return bytes_; }

 private:
  void write(std::span<const std::byte> from) override { bytes_ += from.size(); }

  std::size_t bytes_ = 0;
};

// Borrows `bytes`.
class StateByteReader final : public StateReader {
 public:
  explicit StateByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t bytes_left() const { return bytes_.size(); }

 private:
  void read(std::span<std::byte> to) override {
    if (bytes_.size() < to.size()) {
      throw ModelError("saved state: found " + std::to_string(bytes_.size()) +
                       " bytes more, expected at least " + std::to_string(to.size()));
    }
    if (!to.empty()) std::memcpy(to.data(), bytes_.data(), to.size());
    bytes_ = bytes_.subspan(to.size());
  }

  std::span<const std::byte> bytes_;
};

}  // namespace lintel
