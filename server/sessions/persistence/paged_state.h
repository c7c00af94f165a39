// SPDX-License-Identifier: Apache-2.0
// PagedState: a session's state in the form of session storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/state_bytes.h"
#include "model/sequence.h"
#include "model/transformer.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// The states of a row, and the full pages that they share: a page is stored once, with the first
// state that has it. States are in Row.states in ascending order, each after the pages of its
// tokens.
//
//   is_pages   first      position
//   true       0          4,096      pages of the tokens [0, 4,096)
//   true       4,096      4,608
//   false      4,608      4,617      a state: it needs the pages of tokens before `first`
//   true       4,608      4,640
//   false      4,640      4,650      a later one, which needs all three
using StoredStates = std::vector<SessionStorage::StateRef>;

// The tokens of the last state; 0: there is none.
std::int64_t last_state_of(const StoredStates& states);

// Adds the result of put(): pages, then the state, whose position is the latest. Drops what no
// longer fits: pages of tokens from its `first` on, which a rewind has left, and pages that it
// replaces, with the states that need them. Of more than kMostStates states the one whose loss
// costs least is dropped (going back d tokens means reading about d again), but not the last one at
// or before `start`, from where a call may have to be run again.
inline constexpr std::size_t kMostStates = 4;
void add_states(StoredStates& states, const StoredStates& put, std::int64_t start);

// Zeroes what it holds.
struct PagedState {
  PagedState() = default;
  PagedState(PagedState&&) = default;
  PagedState& operator=(PagedState&&) = default;
  ~PagedState() { zero_memory(std::span(bytes)); }

  // Takes the state of a sequence, in the memory of `bytes`. stored: states of the session whose
  // pages equal the sequence's bit for bit, or are of another KV type; the former are left out.
  // Throws std::bad_alloc.
  void save(const SequenceState& sequence, const StoredStates& stored);
  // Zeroes the bytes, keeps their memory, and releases the pages.
  void clear();

  // Puts the pages, then the state. Waits. kNone: `refs` is the argument for add_states().
  SessionError put(SessionStorage& storage, const SessionStorage::SessionId& id,
                   StoredStates& refs) const;

  // Reads a state of a row with all of its pages, at most `most` bytes. Waits. False: it is missing
  // or damaged. Throws std::bad_alloc.
  bool read(SessionStorage& storage, const StoredStates& states,
            const SessionStorage::StateRef& state, std::size_t most);

  std::int64_t position = 0;   // tokens: SequenceState::next_position
  std::int64_t pages_end = 0;  // tokens before it are in pages
  std::vector<std::byte> bytes;
  std::vector<PageRun> pages;  // those that storage lacks; after read(), all
};

// The rule for storing states. A state is many times as large as its tokens: one that is small
// against the work of reading tokens again is stored at each call's end, others after so many
// tokens.
struct ParkPolicy {
  static constexpr std::int64_t kTokens = 1024;
  static constexpr std::size_t kLargeState = std::size_t{1} << 20;  // bytes

  std::int64_t tokens = 0;  // 0: kTokens, but 1 at the end of a call with a large state

  std::int64_t on_the_way() const { return tokens == 0 ? kTokens : tokens; }
  std::int64_t at_end(std::size_t state_bytes) const {
    return tokens == 0 && state_bytes >= kLargeState ? 1 : on_the_way();
  }
  // True if a state is stored at the end of a call when no stored one has the last `count` tokens:
  // a quarter suffices if the session is about to leave memory.
  bool pays(const Transformer& model, std::int64_t count, bool leaves_memory) const {
    const std::int64_t least = at_end(model.state_bytes(0));
    return model.appends_state() && count >= (leaves_memory ? (least + 3) / 4 : least);
  }
};

// True if storage still has a state and all pages that it needs: SessionStorage::holds_state.
bool holds_state(SessionStorage& storage, const StoredStates& states,
                 const SessionStorage::StateRef& state);

}  // namespace lintel
