// AttentionBackend and AttentionState: the contract every kind of attention keeps. What a kind says
// of itself is in declaration.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/core/state_stream.h"
#include "model/core/tensor.h"
#include "model/layers/attention/declaration.h"

namespace lintel {

// What one layer of one sequence remembers. Made by the backend that uses it; used by one thread at
// a time. A state that holds memory of its own zeroes it before giving it back (zero_memory).
class AttentionState {
 public:
  virtual ~AttentionState() = default;

  // Bytes held now, the flat block included. At most state_bytes(tokens seen).
  virtual std::size_t bytes() const = 0;
  // What the next step reads regardless of its row, where that is known and contiguous: it can be
  // prefetched. Else empty.
  virtual std::span<const float> read_next() const { return {}; }
  // Becomes equal to `other`, a state of the same backend. The two share nothing afterwards.
  virtual void assign(const AttentionState& other) = 0;
  // Back to the state of an empty sequence; what it held is zeroed.
  virtual void reset() = 0;

  // The last `num_rows` rows that the next step feeds are drafts, which take_back() may undo.
  // `memory` has take_back_floats(num_rows, where they end) floats, and lasts through the step
  // after it.
  virtual void announce(std::size_t num_rows, std::span<float> memory) = 0;
  // Takes back the last `num_rows` drafts of the step before, 0 or more: the state is bit for bit
  // as if they had never been fed. REQUIRES: the step had announced drafts, and nothing else
  // was asked of the state since.
  //
  // What the memory holds of the drafts is zeroed here; or, where those that stay enter the state
  // with the rows of the next step, there or in settle(), the earlier of the two.
  virtual void take_back(std::size_t num_rows) = 0;
  // The state depends on no memory but its own from here on. Before anything but the next step is
  // asked of a state that had drafts.
  virtual void settle() {}

  // Writes what tokens from `since` on (0: all) have made of the state, drafts of the last step
  // among them. REQUIRES: 0 <= since <= tokens seen.
  virtual void save(std::int64_t since, StateWriter& writer) const = 0;
  // Becomes the state that was saved after `position` tokens: it continues bit for bit as the saved
  // one. REQUIRES: this is a state of the same kind of backend, as it was after `since` tokens of
  // the same sequence.
  //
  // The bytes may be a stranger's. Throws ModelError for what cannot be such a state, then only
  // reset() and assign() are left; takes no more memory than state_bytes(position). A state it
  // accepts is safe to feed, even if it makes no sense. Floats are finite.
  virtual void load(std::int64_t position, StateReader& reader) = 0;
};

// Working memory a step may use; grows to its high-water mark and stays. One per worker thread.
struct AttentionScratch {
  std::vector<float> floats;
  std::vector<std::int32_t> ints;
  std::vector<const float*> pointers;
  std::vector<std::size_t> ends;
};

// A row for each token: what the projections that are read make of it, [rows, width] each, in the
// order in which the kind declares them. They may lie side by side: each has a stride of its own.
using AttentionInputs = std::span<const MatrixView<const float>>;

// AttentionBackend::tokens_until_full of a state that never stops growing.
inline constexpr std::int64_t kNeverFull = INT64_MAX;

// The attention of one layer. Const and shareable between threads.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Floats of flat memory that a state takes from its sequence's block: what never grows, so that
  // such a sequence is one relocatable block; 0 where all of it grows.
  virtual std::size_t block_floats() const = 0;

  // A state of an empty sequence. `block` has block_floats() zeroed, 64-byte aligned floats and
  // outlives the state.
  virtual std::unique_ptr<AttentionState> new_state(std::span<float> block) const = 0;

  // Upper bound of AttentionState::bytes() after num_tokens tokens. Known before a session starts.
  // SIZE_MAX where no state can hold so many.
  virtual std::size_t state_bytes(std::int64_t num_tokens) const = 0;

  // From so many tokens on state_bytes() stays as it is: 0 where it is constant, kNeverFull where
  // it has no end.
  virtual std::int64_t tokens_until_full() const = 0;

  // Floats of working memory that a step keeps for AttentionState::take_back of up to num_rows
  // rows, with which a sequence has `end` tokens.
  virtual std::size_t take_back_floats(std::size_t num_rows, std::int64_t end) const = 0;

  // Feeds one token a row: row r extends *states[r] and attends from there. Consecutive rows may
  // share a state, in order of position. The bits of a row's output depend on its sequence only.
  // out: [rows, out_width], with a stride of its own.
  virtual void step(std::span<AttentionState* const> states, AttentionInputs inputs,
                    MatrixView<float> out, AttentionScratch& scratch) const = 0;

  // All tokens of one sequence at once, as recompute mode runs a prefix: row t attends from
  // position t to those up to it. Shapes as in step(). By default what a fresh state gives step by
  // step.
  virtual void full_pass(AttentionInputs inputs, MatrixView<float> out,
                         AttentionScratch& scratch) const;

  // Whether full_pass() has the bits of step(). Where it has not, the backend documents how the two
  // differ.
  virtual bool full_pass_equals_steps() const { return true; }
};

// Rows of the first state, which come first.
std::size_t run_length(std::span<AttentionState* const> states);

}  // namespace lintel
