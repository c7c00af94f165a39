// SPDX-License-Identifier: Apache-2.0
// Vocabularies and walks for tests of grammars.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/grammar/matcher.h"
#include "server/grammar/token_matcher.h"
#include "server/grammar/vocabulary.h"

namespace lintel::grammar {

// All single bytes, then `more`, then one end token.
inline std::shared_ptr<const Vocabulary> vocabulary_of(const std::set<std::string>& more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const std::string& token : more) {
    if (token.size() > 1) tokens.push_back(token);
  }
  tokens.emplace_back();
  const auto end = static_cast<std::int32_t>(tokens.size() - 1);
  return std::make_shared<const Vocabulary>(std::move(tokens), std::vector<std::int32_t>{end});
}

inline bool has_bit(std::span<const std::uint64_t> words, std::size_t id) {
  return (words[id / 64] >> (id % 64) & 1) != 0;
}

inline std::vector<std::int32_t> ids_of(std::span<const std::uint64_t> words) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t left = words[i]; left != 0; left &= left - 1) {
      ids.push_back(static_cast<std::int32_t>(i * 64) + std::countr_zero(left));
    }
  }
  return ids;
}

// The mask as the definition has it: each token is tried.
inline std::vector<std::uint64_t> naive_mask(const TokenMatcher& matcher) {
  const Vocabulary& vocabulary = *matcher.vocabulary();
  std::vector<std::uint64_t> words(vocabulary.mask_words());
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    TokenMatcher copy = matcher;
    if (copy.advance(static_cast<std::int32_t>(id)))
      words[id / 64] |= std::uint64_t{1} << (id % 64);
  }
  return words;
}

// A text that masks permit, ended by the end token, or cut after `most` tokens. `prefer_marks`: of
// a hundred, how often a token that begins with a mark of JSON is taken, if several tries find one.
inline std::string random_text(TokenMatcher& matcher, std::mt19937_64& random, int most,
                               unsigned prefer_marks = 50) {
  std::string text;
  for (int i = 0; i < most && !matcher.ended(); ++i) {
    const std::vector<std::int32_t> ids = ids_of(matcher.mask());
    if (ids.empty()) return "no token is left after " + text;
    std::int32_t id = ids[random() % ids.size()];
    if (matcher.accepts() && random() % 8 == 0) id = matcher.vocabulary()->end_tokens()[0];
    if (random() % 100 < prefer_marks) {
      for (int k = 0; k < 20; ++k) {
        const std::int32_t other = ids[random() % ids.size()];
        const std::string_view bytes = matcher.vocabulary()->bytes_of(other);
        if (bytes.find_first_of("\"}]:,") == 0) id = other;
      }
    }
    text += matcher.vocabulary()->bytes_of(id);
    if (!matcher.advance(id)) return "a token of the mask is refused after " + text;
  }
  return text;
}

// Tokens of JSON as vocabularies have them: marks that follow one another, words, blanks,
// characters.
inline std::set<std::string> json_tokens() {
  return {"\"",     "\":",  "\": ",  "\",",      "\", \"",   "{\"",      "\"}",     "\"}]",
          "}]",     "]}",   "}}",    "],",       "},",       ", ",       ": ",      ": \"",
          ":{",     "[[",   "[]",    "{}",       "[{\"",     "[\"",      "\n",      "\n  ",
          "\n    ", "  ",   "true",  "false",    "null",     "tr",       "ue",      "12",
          "123",    "1,",   "0.5",   "e3",       "-1",       "-0",       "1]",      "4}",
          "city",   "ci",   "ty\"",  "days",     "unit",     "C\"",      "\"C",     "kind",
          "circle", "a\":", "\\n",   "\\\"",     "\\u",      "d8",       "\\u00e9", "ab",
          "aa",     "xx",   "abc\"", "\xC3\xA9", "\xF0\x9F", "\x98\x80", "\xC3",    "\xA9\"",
          "2020-",  "-01",  "01\"",  "12:3",     "bc",       "bb",       "c\","};
}

}  // namespace lintel::grammar
