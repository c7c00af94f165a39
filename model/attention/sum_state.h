// SumState: a state of constant size whose tokens are added to sums.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "model/attention/attention.h"
#include "model/attention/parts/saved_state.h"

namespace lintel {

// The sums, in the sequence's flat block. The block belongs to the sequence, which zeroes it.
//
// A row cannot be subtracted from the sums bit for bit. So what each draft adds is kept, and either
// the drafts do not enter the sums before it is known which of them stay (keep_aside), or the sums
// are copied before the first one and restored (keep). What stays is added again, in order.
class SumState : public AttentionState {
 public:
  // kept_floats: what a draft adds, for feed_again(). most_tokens: where the sequence ends.
  SumState(std::span<float> block, std::size_t kept_floats, std::int64_t most_tokens = INT64_MAX)
      : block_(block), kept_floats_(kept_floats), most_tokens_(most_tokens) {}

  static std::size_t take_back_floats(std::size_t block_floats, std::size_t kept_floats,
                                      std::size_t num_rows) {
    return block_floats + num_rows * kept_floats;
  }

  std::size_t bytes() const final { return block_.size_bytes(); }
  std::span<const float> read_next() const final { return block_; }

  void assign(const AttentionState& other) final {
    const auto& from = static_cast<const SumState&>(other);
    assert(from.block_.size() == block_.size());
    assert(!from.aside_ || from.kept_ == 0);
    std::ranges::copy(from.block_, block_.begin());
    position_ = from.position_;
    kept_ = 0;
  }

  void reset() final {
    std::ranges::fill(block_, 0.0f);
    position_ = 0;
    kept_ = 0;
  }

  void announce(std::size_t num_rows, std::span<float> memory) final {
    assert(memory.size() >= take_back_floats(block_.size(), kept_floats_, num_rows));
    announced_ = num_rows;
    memory_ = memory.data();
  }

  void take_back(std::size_t num_rows) final {
    assert(num_rows <= kept_);
    if (!aside_) std::copy_n(memory_, block_.size(), block_.begin());
    position_ -= static_cast<std::int64_t>(kept_);
    kept_ -= num_rows;
    feed_again(kept_row(0), kept_);
    kept_ = 0;
  }
  void keep_drafts() final {
    if (aside_) take_back(0);
  }

  // The whole block, whatever `since` is.
  void save(std::int64_t since, StateWriter& writer) const final {
    assert(since <= position_);
    writer.value(position_);
    writer.values(std::span<const float>(block_));
  }
  void load(std::int64_t position, StateReader& reader) final {
    check_saved("position", reader.value<std::uint64_t>(), static_cast<std::uint64_t>(position));
    if (position < position_ || position > most_tokens_) {
      throw ModelError("saved state: found position " + std::to_string(position) + ", expected " +
                       std::to_string(position_) + " to " + std::to_string(most_tokens_));
    }
    read_finite(reader, block_);
    position_ = position;
  }

  // A run of num_rows rows is about to be fed. Returns how many come before the first draft.
  std::size_t begin_run(std::size_t num_rows) {
    assert(announced_ <= num_rows);
    assert(!aside_ || kept_ == 0);
    kept_ = 0;
    return num_rows - std::exchange(announced_, 0);
  }
  // Before a draft is fed, in order. Returns where what it adds is to be written, kept_floats from
  // one draft to the next. All drafts of a run in the same way.
  float* keep() {
    if (kept_ == 0) std::copy(block_.begin(), block_.end(), memory_);
    aside_ = false;
    return kept_row(kept_++);
  }
  // The same for a draft that is attended without entering the sums.
  float* keep_aside() {
    aside_ = true;
    return kept_row(kept_++);
  }

 protected:
  // Adds what `count` drafts added, that of each kept_floats behind the one before.
  virtual void feed_again(float* kept, std::size_t count) = 0;

  std::span<float> block() const { return block_; }
  std::int64_t next_position() { return position_++; }  // of a token that is fed now
  std::int64_t position() const { return position_; }
  void advance(std::size_t num_tokens) { position_ += static_cast<std::int64_t>(num_tokens); }
  std::size_t kept_floats() const { return kept_floats_; }

 private:
  float* kept_row(std::size_t i) { return memory_ + block_.size() + i * kept_floats_; }

  const std::span<float> block_;
  const std::size_t kept_floats_;
  const std::int64_t most_tokens_;
  std::int64_t position_ = 0;  // tokens fed

  // Valid from one step to the next.
  std::size_t announced_ = 0;  // drafts of the next run
  std::size_t kept_ = 0;       // drafts of the last run
  bool aside_ = false;         // they are not in the sums
  float* memory_ = nullptr;
};

}  // namespace lintel
