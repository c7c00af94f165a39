// SPDX-License-Identifier: Apache-2.0
// TokenRecord: the tokens of an answer with their log-probabilities, as numbers until they are
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lintel {

// A token takes 10 bytes, and 8 more for each of the most likely ones in its place; the text of
// each id is kept once. (As JSON a token takes from 80 bytes to some thousand, as a tree ten times
// as many.) Used by one thread at a time.
class TokenRecord {
 public:
  struct Value {
    std::int32_t id = 0;
    float log2_prob = 0;  // NaN: it has none
  };
  // A token to be read, and where its values are. The next one's follows.
  struct Cursor {
    std::size_t token = 0;
    std::size_t value = 0;
  };

  void add(std::int32_t id, std::string_view text, float log2_prob);
  // One of the most likely ones in the place of the last token.
  void add_top(std::int32_t id, std::string_view text, float log2_prob);

  std::size_t size() const { return tops_.size(); }
  bool empty() const { return tops_.empty(); }
  // REQUIRES: the cursor is at a token.
  Value token_at(const Cursor& cursor) const { return values_[cursor.value]; }
  std::size_t tops_at(const Cursor& cursor) const { return tops_[cursor.token]; }
  Value top_at(const Cursor& cursor, std::size_t top) const {
    return values_[cursor.value + 1 + top];
  }
  void advance(Cursor& cursor) const {
    cursor.value += 1 + tops_[cursor.token];
    ++cursor.token;
  }
  // Empty: it has none.
  std::string_view text_of(std::int32_t id) const;

  // Bytes in memory.
  std::size_t bytes() const;
  // The most bytes of so many tokens with `tops` of the most likely ones each.
  static std::size_t most_bytes(std::size_t tokens, std::size_t tops, std::size_t vocab_size);

 private:
  void add_value(std::int32_t id, std::string_view text, float log2_prob);

  std::deque<Value> values_;        // each token, and behind it those in its place
  std::deque<std::uint16_t> tops_;  // of each token; --max-top-log2-probs is at most 4096
  std::unordered_map<std::int32_t, std::string> texts_;
  std::size_t text_bytes_ = 0;
};

}  // namespace lintel
