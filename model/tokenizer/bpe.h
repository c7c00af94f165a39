// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: tokens joined by rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/tokenizer/text_index.h"

namespace lintel {

// The merges of a vocabulary. Immutable once filled; then shared by threads.
class BpeMerges {
 public:
  explicit BpeMerges(std::size_t most_merges);

  // After all merges before it: a merge's rank is its place. False: the pair is there already.
  bool add(std::int32_t left, std::int32_t right, std::int32_t joined);
  std::size_t size() const { return joined_.size(); }

  // Joins the tokens of one piece: the pair of lowest rank first, the leftmost of equal ones.
  // Appends what is left of them to `ids`. n tokens take O(n log n). Throws std::length_error
  // beyond 2^32 - 2 tokens.
  void encode(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& ids) const;

 private:
  class LongPiece;

  void encode_short(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& ids) const;
  void encode_long(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& ids) const;

  PairRanks ranks_;
  std::vector<std::int32_t> joined_;  // by rank
};

}  // namespace lintel
