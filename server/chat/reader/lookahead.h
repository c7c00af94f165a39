// SPDX-License-Identifier: Apache-2.0
// Lookahead and TagMatcher: bytes that are read, and read again if they turn out to be text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lintel {

// Bytes of white space, and of white space in tags, that wait for what follows.
inline constexpr std::size_t kMaxWaitingBytes = std::size_t{64} << 10;
// Bytes of a call that has no name yet, and of an argument that comes whole.
inline constexpr std::size_t kMaxHeldBytes = std::size_t{1} << 20;
// Characters of the name of a function, and of a parameter.
inline constexpr std::size_t kMaxNameCharacters = 256;

inline bool is_white_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The bytes of an output from the first one that is not decided. One mark at a time says where a
// tag or a call may begin.
class Lookahead {
 public:
  void append(std::string_view bytes) { bytes_ += bytes; }
  bool empty() const { return next_ == bytes_.size(); }
  char next() { return bytes_[next_++]; }

  // Marks the byte that next() returned last.
  void mark() { mark_ = next_ - 1; }
  void release() { mark_ = kNone; }
  bool marked() const { return mark_ != kNone; }
  std::size_t marked_bytes() const { return next_ - mark_; }
  char marked_byte() const { return bytes_[mark_]; }
  // The marked byte is decided: next() returns the one after it. REQUIRES: marked.
  void rewind() {
    rewound_ += next_ - mark_;
    read_ = read_bytes();
    next_ = mark_ + 1;
    mark_ = kNone;
  }

  // Offsets in the output: of the marked byte, and of the byte that next() returned last.
  std::uint64_t mark_offset() const { return base_ + mark_; }
  std::uint64_t offset() const { return base_ + next_ - 1; }
  // Bytes read so far; and bytes to read again, all together.
  std::uint64_t read_bytes() const { return std::max(read_, base_ + next_); }
  std::uint64_t rewound_bytes() const { return rewound_; }

  // Drops what is decided.
  void trim() {
    const std::size_t decided = marked() ? mark_ : next_;
    if (2 * decided < bytes_.size()) return;
    bytes_.erase(0, decided);
    base_ += decided;
    next_ -= decided;
    if (marked()) mark_ = 0;
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::string bytes_;
  std::uint64_t base_ = 0;  // bytes dropped
  std::size_t next_ = 0;
  std::size_t mark_ = kNone;
  std::uint64_t read_ = 0;  // before the last rewind
  std::uint64_t rewound_ = 0;
};

enum class Tag : std::uint8_t {
  kThink,
  kEndThink,
  kToolCall,
  kEndToolCall,
  kFunction,
  kEndFunction,
  kParameter,
  kEndParameter,
  kCallStart,
  kCallEnd,
};
// Texts of the tags. No tag begins another, and `<` is only at their beginnings.
inline constexpr std::array<std::string_view, 10> kTagTexts = {
    "<think>",     "</think>",    "<tool_call>",  "</tool_call>",        "<function=",
    "</function>", "<parameter=", "</parameter>", "<|tool_call_start|>", "<|tool_call_end|>"};

// A set of tags, a bit each.
using Tags = std::uint32_t;
constexpr Tags tag_bit(Tag tag) { return Tags{1} << static_cast<int>(tag); }

// Finds which of several tags comes.
class TagMatcher {
 public:
  enum class Result { kMore, kNone, kMatched };

  // Begins after the `<` of any of `tags`.
  void begin(Tags tags) {
    alive_ = tags;
    length_ = 1;
  }
  Result step(char byte);
  // REQUIRES: the last step matched.
  Tag matched() const { return matched_; }

 private:
  Tags alive_ = 0;
  std::size_t length_ = 0;
  Tag matched_ = Tag::kThink;
};

inline TagMatcher::Result TagMatcher::step(char byte) {
  Tags left = 0;
  for (std::size_t i = 0; i < kTagTexts.size(); ++i) {
    const Tags bit = Tags{1} << i;
    if ((alive_ & bit) == 0 || kTagTexts[i][length_] != byte) continue;
    if (kTagTexts[i].size() == length_ + 1) {
      matched_ = static_cast<Tag>(i);
      return Result::kMatched;
    }
    left |= bit;
  }
  alive_ = left;
  ++length_;
  return left == 0 ? Result::kNone : Result::kMore;
}

}  // namespace lintel
