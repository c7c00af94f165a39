// SPDX-License-Identifier: Apache-2.0
// CharacterCounts: bounds of the number of characters in an automaton's texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/grammar/dfa.h"

namespace lintel::grammar {

// The numbers of characters that may follow each state of one automaton. Immutable.
class CharacterCounts {
 public:
  // Counts for `dfa`, whose texts are spelt as those of `shape`. Null: after some beginning the
  // numbers of characters that may follow are other than one number, or all from a number on, or
  // both. Adds its work to *work, if there is one.
  static std::shared_ptr<const CharacterCounts> of(const Dfa& dfa, const StringDfa& shape,
                                                   std::size_t* work = nullptr);

  // True if a step to `state` counts: it ends a character, or opens the quotes.
  bool is_counted(Dfa::State state) const { return states_[state].is_counted; }
  // Counts that are no characters of the text: an opening quote.
  std::uint32_t frame() const { return frame_; }
  // True if a text that is in `state` after `needed` less than the least count, and `left` less
  // than the greatest one, can be ended within both.
  bool can_end(Dfa::State state, std::uint64_t needed, std::uint64_t left) const {
    const Counts& counts = states_[state];
    return (counts.fewest >= needed && counts.fewest <= left) || counts.any_from <= left;
  }
  // Counts from which on all may follow `state`, if some are.
  std::uint64_t any_from(Dfa::State state) const { return states_[state].any_from; }
  // The greatest of the numbers that states have, kNever apart.
  std::uint32_t horizon() const { return horizon_; }
  std::size_t bytes() const { return sizeof(*this) + states_.size() * sizeof(Counts); }

 private:
  static constexpr std::uint64_t kNever = std::uint64_t{1} << 40;
  struct Counts {
    std::uint64_t fewest = kNever;
    std::uint64_t any_from = kNever;
    bool is_counted = false;
  };

  std::vector<Counts> states_;
  std::uint32_t frame_ = 0;
  std::uint32_t horizon_ = 0;
};

}  // namespace lintel::grammar
