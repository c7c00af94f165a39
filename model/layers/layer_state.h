// SPDX-License-Identifier: Apache-2.0
// LayerState, what a layer keeps of a sequence, and StateLayout, which sizes such states and makes
// them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/core/state_bytes.h"

namespace lintel {

// The state of one layer of one sequence. Made by the layer that uses it; used by one thread at a
// time. A state that holds memory of its own zeroes it before releasing it (zero_memory).
class LayerState {
 public:
  virtual ~LayerState() = default;

  // Bytes held now, the flat block and what is shared included. At most state_bytes(tokens seen).
  virtual std::size_t bytes() const = 0;
  // Memory that the next step reads regardless of its row, if that is known and contiguous: it can
  // be prefetched. Else empty.
  virtual std::span<const float> read_next() const { return {}; }
  // Becomes equal to `other`, a state of the same layer. What happens to one of the two afterwards
  // is not seen in the other, though memory that neither changes may be shared.
  virtual void assign(const LayerState& other) = 0;
  // Back to the state of an empty sequence; what it held is zeroed.
  virtual void reset() = 0;

  // The last `num_rows` rows that the next step feeds are drafts, which rollback() may undo.
  // `memory` has rollback_floats(num_rows, where they end) floats, and lasts through the step
  // after it.
  virtual void begin_speculation(std::size_t num_rows, std::span<float> memory) = 0;
  // Takes back the last `num_rows` drafts of the step before, 0 or more: the state is bit for bit
  // as if they had never been fed. REQUIRES: the step had announced drafts, and nothing else
  // was asked of the state since.
  //
  // The memory of the drafts is zeroed here; or, if rows that stay enter the state with the next
  // step, there or in settle(), the earlier of the two.
  virtual void rollback(std::size_t num_rows) = 0;
  // The state depends on no memory but its own from here on. Before anything but the next step is
  // asked of a state that had drafts.
  virtual void settle() {}

  // Writes what tokens from `since` on (0: all) have made of the state, drafts of the last step
  // among them. REQUIRES: 0 <= since <= tokens seen.
  virtual void save(std::int64_t since, StateWriter& writer) const = 0;
  // Becomes the state that was saved after `position` tokens: it continues bit for bit as the saved
  // one. REQUIRES: this is a state of the same kind of layer, as it was after `since` tokens of
  // the same sequence.
  //
  // The bytes may be a stranger's. Throws ModelError for what cannot be such a state, then only
  // reset() and assign() are left; takes no more memory than state_bytes(position). A state it
  // accepts is safe to feed, even if it makes no sense. Floats are finite.
  virtual void load(std::int64_t position, StateReader& reader) = 0;
};

// StateLayout::tokens_until_full of a state that never stops growing.
inline constexpr std::int64_t kNeverFull = INT64_MAX;

// The layout of the states that a layer keeps, one for each sequence. Const and shareable between
// threads.
class StateLayout {
 public:
  virtual ~StateLayout() = default;

  // Floats of flat memory that a state takes from its sequence's block: what never grows, so that
  // such a sequence is one relocatable block; 0 where all of it grows.
  virtual std::size_t block_floats() const = 0;

  // A state of an empty sequence. `block` has block_floats() zeroed, 64-byte aligned floats and
  // outlives the state.
  virtual std::unique_ptr<LayerState> new_state(std::span<float> block) const = 0;

  // Upper bound of LayerState::bytes() after num_tokens tokens. Known before a session starts.
  // SIZE_MAX where no state can hold so many.
  virtual std::size_t state_bytes(std::int64_t num_tokens) const = 0;

  // From so many tokens on state_bytes() stays as it is: 0 where it is constant, kNeverFull where
  // it has no end.
  virtual std::int64_t tokens_until_full() const = 0;

  // Tokens of a page, if a state grows by pages that are never written again once they are full; 0:
  // it does not grow, or in another way.
  virtual std::int64_t page_tokens() const { return 0; }

  // Floats of working memory that a step keeps for LayerState::rollback of up to num_rows
  // rows, with which a sequence has `end` tokens.
  virtual std::size_t rollback_floats(std::size_t num_rows, std::int64_t end) const = 0;
};

// Tokens of a page of what grows of several states (StateLayout::page_tokens); 0 where nothing
// does, or not all in pages.
inline std::int64_t page_tokens(std::span<const std::shared_ptr<const StateLayout>> layouts) {
  std::int64_t tokens = 0;
  for (const auto& layout : layouts) {
    if (layout->tokens_until_full() == 0) continue;
    tokens = layout->page_tokens();
    if (tokens == 0) return 0;
  }
  return tokens;
}

// Rows of the first state, which come first.
inline std::size_t run_length(std::span<LayerState* const> states) {
  return static_cast<std::size_t>(
      std::ranges::find_if(states, [&](const auto* state) { return state != states[0]; }) -
      states.begin());
}

// Checks of a saved state that every kind of layer makes when it is loaded.

// Throws ModelError unless what was read is what the state has to have.
void check_saved(const char* what, std::uint64_t found, std::uint64_t expected);
// Reads as many floats. Throws ModelError where one is not finite: it would spread to all that is
// computed from the state.
void read_finite(StateReader& reader, std::span<float> values);

}  // namespace lintel
