// SPDX-License-Identifier: Apache-2.0
// The state of a sequence as bytes in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/core/shared_block.h"

namespace lintel {

// Writers and readers of the state of a sequence.

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
  // The bytes of a block; a writer may keep a reference in their place. `end`: the block is full
  // with the tokens before it, and is never written again; 0 where it may be.
  virtual void block(const SharedBlock& block, std::int64_t /*end*/) { values(block.bytes()); }

 private:
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// Reads what a StateWriter wrote, in the same pieces. One thread's.
class StateReader {
 public:
  virtual ~StateReader() = default;

  // A block of so many bytes, written with this `end`. None of its other owners, if it has some,
  // writes to it.
  virtual SharedBlock block(std::size_t bytes, std::int64_t /*end*/) {
    SharedBlock made(bytes);
    values(std::span(made.data(), bytes));
    return made;
  }
  // True if all that it reads was written by this process and has been nowhere else.
  virtual bool is_trusted() const { return false; }

  // True if a part of what was read was held in another type before, and was rounded.
  bool has_converted() const { return has_converted_; }
  void note_conversion() { has_converted_ = true; }

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

  bool has_converted_ = false;
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

// A state in this process, which shares the blocks of what was saved.
struct SharedState {
  SharedState() = default;
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;
  ~SharedState() { zero_memory(std::span(bytes)); }

  std::vector<std::byte> bytes;  // all but the blocks
  std::vector<SharedBlock> blocks;
};

// Appends to `state`, which outlives it.
class SharedStateWriter final : public StateWriter {
 public:
  explicit SharedStateWriter(SharedState& state) : state_(state) {}

  void block(const SharedBlock& block, std::int64_t /*end*/) override {
    state_.blocks.push_back(block);
  }

 private:
  void write(std::span<const std::byte> from) override {
    state_.bytes.insert(state_.bytes.end(), from.begin(), from.end());
  }

  SharedState& state_;
};

// Counts the bytes that SharedStateWriter will append.
class SharedStateCount final : public StateWriter {
 public:
  std::size_t bytes() const { return bytes_; }
  std::size_t blocks() const { return blocks_; }

  void block(const SharedBlock& /*block*/, std::int64_t /*end*/) override { ++blocks_; }

 private:
  void write(std::span<const std::byte> from) override { bytes_ += from.size(); }

  std::size_t bytes_ = 0;
  std::size_t blocks_ = 0;
};

// Borrows the state. Thread-safe among readers of one state.
class SharedStateReader final : public StateReader {
 public:
  explicit SharedStateReader(const SharedState& state)
      : bytes_(state.bytes), blocks_(state.blocks) {}

  SharedBlock block(std::size_t bytes, std::int64_t /*end*/) override {
    if (blocks_.empty() || blocks_.front().bytes().size() != bytes) {
      throw ModelError("saved state: found no block of " + std::to_string(bytes) + " bytes");
    }
    SharedBlock next = blocks_.front();
    blocks_ = blocks_.subspan(1);
    return next;
  }
  bool is_trusted() const override { return true; }

 private:
  void read(std::span<std::byte> to) override { bytes_.values(to); }

  StateByteReader bytes_;
  std::span<const SharedBlock> blocks_;
};

// Pages of the tokens [first, end), as SequenceState::save writes them: layer by layer, and the
// pages of a layer by position.
struct PageRun {
  std::int64_t first = 0, end = 0;
  std::vector<SharedBlock> blocks;
};

// Appends to `bytes`; full pages of the runs' tokens go to those in place of it, and those of
// tokens before `saved` that no run has nowhere. Both outlive it. REQUIRES: the runs are in
// ascending order.
class PagedStateWriter final : public StateWriter {
 public:
  PagedStateWriter(std::vector<std::byte>& bytes, std::span<PageRun> runs, std::int64_t saved)
      : bytes_(bytes), runs_(runs), saved_(saved) {}

  void block(const SharedBlock& block, std::int64_t end) override {
    if (end == 0 || end > saved_) return values(block.bytes());
    const auto run = std::ranges::lower_bound(runs_, end, {}, &PageRun::end);
    if (run != runs_.end() && end > run->first) run->blocks.push_back(block);
  }

 private:
  void write(std::span<const std::byte> from) override {
    bytes_.insert(bytes_.end(), from.begin(), from.end());
  }

  std::vector<std::byte>& bytes_;
  const std::span<PageRun> runs_;
  const std::int64_t saved_;
};

// Reads what several PagedStateWriters wrote: the bytes of the last one, and all runs, whose blocks
// it shares. Borrows both.
class PagedStateReader final : public StateReader {
 public:
  PagedStateReader(std::span<const std::byte> bytes, std::span<const PageRun> runs)
      : bytes_(bytes), runs_(runs), taken_(runs.size()) {}

  bool all_read() const {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (taken_[i] != runs_[i].blocks.size()) return false;
    }
    return bytes_.bytes_left() == 0;
  }

  SharedBlock block(std::size_t bytes, std::int64_t end) override {
    const auto run = std::ranges::lower_bound(runs_, end, {}, &PageRun::end);
    if (end == 0 || run == runs_.end() || end <= run->first) {
      return StateReader::block(bytes, end);
    }
    std::size_t& next = taken_[static_cast<std::size_t>(run - runs_.begin())];
    if (next == run->blocks.size() || run->blocks[next].bytes().size() != bytes) {
      throw ModelError("saved state: found no page of " + std::to_string(bytes) + " bytes");
    }
    return run->blocks[next++];
  }

 private:
  void read(std::span<std::byte> to) override { bytes_.values(to); }

  StateByteReader bytes_;
  const std::span<const PageRun> runs_;
  std::vector<std::size_t> taken_;  // blocks of each run
};

}  // namespace lintel
