// What a sequence remembers as bytes in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "model/core/model_error.h"
#include "model/core/state_stream.h"

namespace lintel {

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
