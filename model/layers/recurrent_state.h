// SPDX-License-Identifier: Apache-2.0
// RecurrentState: a state of constant size that takes back draft tokens by feeding the others
// again.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "model/core/errors.h"
#include "model/core/tensor.h"
#include "model/layers/layer_state.h"

namespace lintel {

// A state of constant size, in the sequence's flat block: what attention sums up, or the matrix of
// a recurrence. The block belongs to the sequence, which zeroes it.
//
// A row cannot be subtracted from the sums bit for bit. So what each draft adds is kept, and either
// the drafts do not enter the sums before it is known which of them stay (keep_aside), or the sums
// are copied before the first one and restored (keep). What stays is added again, in order: of the
// drafts kept aside with the rows of the next step, which reads the sums anyway.
class RecurrentState : public LayerState {
 public:
  // kept_floats: what a draft adds, for feed_again(). most_tokens: where the sequence ends.
  RecurrentState(std::span<float> block, std::size_t kept_floats,
                 std::int64_t most_tokens = INT64_MAX)
      : block_(block), kept_floats_(kept_floats), most_tokens_(most_tokens) {}

  // block_floats: 0 where all drafts are kept aside.
  static std::size_t rollback_floats(std::size_t block_floats, std::size_t kept_floats,
                                     std::size_t num_rows) {
    return block_floats + num_rows * kept_floats;
  }

  std::size_t bytes() const final { return block_.size_bytes(); }
  std::span<const float> read_next() const final { return block_; }

  void assign(const LayerState& other) final {
    const auto& from = static_cast<const RecurrentState&>(other);
    assert(from.block_.size() == block_.size());
    assert(from.kept_.count == 0 && from.pending_.count == 0);
    std::ranges::copy(from.block_, block_.begin());
    position_ = from.position_;
    kept_ = pending_ = {};
  }

  void reset() final {
    std::ranges::fill(block_, 0.0f);
    position_ = 0;
    zero(std::exchange(kept_, {}));
    zero(std::exchange(pending_, {}));
  }

  void begin_speculation(std::size_t num_rows, std::span<float> memory) final {
    drafts_pending_ = num_rows;
    memory_ = memory;
  }

  void rollback(std::size_t num_rows) final {
    assert(num_rows <= kept_.count || kept_.count == 0);
    if (kept_.count == 0) return;
    const std::size_t stay = kept_.count - num_rows;
    position_ -= static_cast<std::int64_t>(num_rows);
    if (aside_ && stay > 0) {
      pending_ = {.rows = kept_.rows, .count = kept_.count, .stay = stay};
    } else if (aside_) {
      zero(kept_);
    } else {
      const std::span<float> copy = block_copy();
      std::ranges::copy(copy, block_.begin());
      position_ -= static_cast<std::int64_t>(stay);
      feed_again(kept_.rows, stay, copy);
      zero_memory(copy);
      zero(kept_);
    }
    kept_ = {};
  }

  void settle() final {
    if (pending_.count == 0) return;
    if (pending_.stay > 0) feed_pending(pending_.rows, pending_.stay);
    clear_pending();
  }

  // The whole block, for every `since`.
  void save([[maybe_unused]] std::int64_t since, StateWriter& writer) const final {
    assert(since <= position_ && pending_.count == 0);
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
    assert(drafts_pending_ <= num_rows && kept_.count == 0);
    kept_ = {.rows = memory_.data()};
    return num_rows - std::exchange(drafts_pending_, 0);
  }
  // Before a draft is fed, in order. Returns where what it adds is to be written. All drafts of a
  // run in the same way. REQUIRES: nothing is pending.
  float* keep() {
    assert(pending_.count == 0);
    aside_ = false;
    if (kept_.count == 0) std::ranges::copy(block_, block_copy().begin());
    return kept_.rows + kept_.count++ * kept_floats_;
  }
  // The same for a draft that is attended without entering the sums.
  float* keep_aside() {
    aside_ = true;
    return kept_.rows + kept_.count++ * kept_floats_;
  }

  // Drafts that stay and are not in the sums: what they add, kept_floats() from one to the next.
  std::span<const float> pending() const { return {pending_.rows, pending_.stay * kept_floats_}; }
  // Once they were added.
  void clear_pending() { zero(std::exchange(pending_, {})); }

 protected:
  // Feeds the first `count` kept drafts again, where the block is as before them. work: as long as
  // the block.
  virtual void feed_again(const float* kept, std::size_t count, std::span<float> work) = 0;
  // Adds what `count` drafts add that were kept aside. The position is after them.
  virtual void feed_pending(const float* /*kept*/, std::size_t /*count*/) {}

  std::span<float> block() const { return block_; }
  std::int64_t next_position() { return position_++; }  // of a token that is fed now
  std::int64_t position() const { return position_; }
  void advance(std::size_t num_tokens) { position_ += static_cast<std::int64_t>(num_tokens); }
  std::size_t kept_floats() const { return kept_floats_; }

 private:
  // Drafts in a step's memory.
  struct Kept {
    float* rows = nullptr;
    std::size_t count = 0;
    std::size_t stay = 0;  // the first of them, once they are judged
  };

  void zero(const Kept& kept) const {
    zero_memory(std::span(kept.rows, kept.count * kept_floats_));
  }
  std::span<float> block_copy() const {
    assert(memory_.size() >= block_.size());
    return memory_.last(block_.size());
  }

  const std::span<float> block_;
  const std::size_t kept_floats_;
  const std::int64_t most_tokens_;
  std::int64_t position_ = 0;  // tokens fed, and those pending

  // Valid from one step to the next.
  std::size_t drafts_pending_ = 0;  // drafts of the next run
  std::span<float> memory_;         // of those last announced
  Kept kept_;                       // drafts of the last run, not judged yet
  bool aside_ = false;              // they are not in the sums
  Kept pending_;                    // of the run before, judged, not in the sums
};

// Sizes such states where a block is copied before its first draft.
class RecurrentLayout : public StateLayout {
 public:
  RecurrentLayout(std::size_t block_floats, std::size_t kept_floats)
      : block_floats_(block_floats), kept_floats_(kept_floats) {}

  std::size_t block_floats() const final { return block_floats_; }
  std::size_t state_bytes(std::int64_t /*num_tokens*/) const final {
    return block_floats_ * sizeof(float);
  }
  std::int64_t tokens_until_full() const final { return 0; }
  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const final {
    return RecurrentState::rollback_floats(block_floats_, kept_floats_, num_rows);
  }
  std::size_t kept_floats() const { return kept_floats_; }

 private:
  const std::size_t block_floats_;
  const std::size_t kept_floats_;
};

}  // namespace lintel
