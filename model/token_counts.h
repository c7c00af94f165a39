// SPDX-License-Identifier: Apache-2.0
// TokenCounts: how often a sequence has each token, in memory that goes by the tokens it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/state_bytes.h"

namespace lintel {

// Counts of tokens: for a small vocabulary a number for each token, for a larger one a table of
// those that occurred, as long as that is smaller. Zeroes memory before it is freed. One thread at
// a time.
class TokenCounts {
 public:
  // A vocabulary whose counts take no more than some pages always has all of them.
  static constexpr std::size_t kMostDense = 4096;

  TokenCounts() = default;  // counts nothing
  explicit TokenCounts(std::size_t vocab_size);
  TokenCounts(const TokenCounts&) = default;
  TokenCounts(TokenCounts&& other) noexcept;  // which counts nothing then
  TokenCounts& operator=(const TokenCounts& other);
  TokenCounts& operator=(TokenCounts&& other) noexcept;
  ~TokenCounts() { zero(); }

  bool empty() const { return vocab_size_ == 0; }  // nothing is counted
  std::size_t vocab_size() const { return vocab_size_; }
  void add(std::int32_t token, std::uint32_t times = 1);
  // REQUIRES: its count is above 0.
  void remove(std::int32_t token);
  // Forgets all counts.
  void clear() noexcept;

  // [V] of every token; in `memory` where they do not lie so already. Valid until a token is added.
  std::span<const std::uint32_t> all(std::vector<std::uint32_t>& memory) const;
  std::vector<std::uint32_t> all() const;
  bool operator==(const TokenCounts& other) const { return all() == other.all(); }

  std::size_t bytes() const { return cells_.size() * sizeof(std::uint32_t); }
  // Upper bound of bytes() after so many tokens, and from how many on it stays as it is.
  static std::size_t most_bytes(std::size_t vocab_size, std::int64_t num_tokens);
  static std::int64_t tokens_until_full(std::size_t vocab_size);

  // After `header`, what save() wrote: the counts of all tokens, or pairs of a token and its count,
  // ascending, where these are fewer bytes.
  std::uint32_t header() const;
  void save(StateWriter& writer) const;
  // REQUIRES: nothing was counted. The bytes may be a stranger's: throws ModelError for what cannot
  // be the counts of at most `most_tokens` tokens.
  void load(std::uint32_t header, std::int64_t most_tokens, StateReader& reader);

 private:
  bool is_dense() const { return cells_.size() == vocab_size_; }
  std::uint32_t* find(std::int32_t token);
  void grow();
  void zero();
  template <typename Body>
  void for_each(const Body& body) const;

  std::size_t vocab_size_ = 0;
  std::size_t num_tokens_ = 0;  // in the table
  // [V]; or a table of pairs of a token, plus 1, and its count, where 0 is free: a power of two of
  // them, at most three quarters taken. Tokens stand behind those with the same first place.
  std::vector<std::uint32_t> cells_;
};

}  // namespace lintel
