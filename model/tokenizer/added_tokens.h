// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in a text before it is split: special ones and others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/world.h"

namespace lintel {

struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool is_special = false;
  bool is_normalized = false;  // looked for after normalisation
};

// Immutable; shared by threads.
class AddedTokens {
 public:
  AddedTokens() = default;
  // REQUIRES: no text is empty or there twice.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  bool empty() const { return trie_.empty(); }

  // Cuts `text` at tokens, leftmost first, of those the longest: calls on_text(part) for what lies
  // between them where that is not empty, and on_token(id). offset: of `text` in what options.plain
  // counts.
  template <typename OnText, typename OnToken>
  void cut(std::string_view text, const EncodeOptions& options, OnText on_text, OnToken on_token,
           std::size_t offset = 0) const {
    if (trie_.empty() || !(options.parse_special || options.parse_added)) {
      if (!text.empty()) on_text(text);
      return;
    }
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      std::int32_t token = -1;
      std::size_t bytes = 1;
      trie_.each_prefix(text.substr(at), [&](std::int32_t i, std::size_t length) {
        const Entry& entry = entries_[static_cast<std::size_t>(i)];
        if (!(entry.is_special ? options.parse_special : options.parse_added)) return;
        if (is_plain(options.plain, offset + at, length, entry.is_special)) return;
        token = entry.id;
        bytes = length;
      });
      if (token >= 0) {
        if (at > begin) on_text(text.substr(begin, at - begin));
        on_token(token);
        begin = at + bytes;
      }
      at += bytes;
    }
    if (begin < text.size()) on_text(text.substr(begin));
  }

 private:
  static bool is_plain(std::span<const PlainText> plain, std::size_t begin, std::size_t length,
                       bool is_special) {
    const auto ends_before = [&](const PlainText& part) { return part.end <= begin; };
    auto part = std::ranges::partition_point(plain, ends_before);
    for (; part != plain.end() && part->begin < begin + length; ++part) {
      if (is_special || !part->special_only) return true;
    }
    return false;
  }

  struct Entry {
    std::int32_t id;
    bool is_special;
  };
  ByteTrie trie_;  // its ids are places in entries_
  std::vector<Entry> entries_;
};

}  // namespace lintel
