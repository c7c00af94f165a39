// SPDX-License-Identifier: Apache-2.0
// TokenMatcher: which tokens may come next in a text that follows a grammar.
//
// The sampling loop of a row asks for the mask before it samples, and advances by the token after:
//
//   TokenMatcher row(grammar, vocabulary);
//   while (!row.prepare(&budget)) ...             // the row waits a step
//   sample(logits, row.mask());
//   row.advance(token);
//
// Draft tokens: a copy is made before the draft; the mask of each position follows from the tokens
// before it. A draft token is rejected where advance() says so or the model does; the copy then
// replaces the matcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "server/grammar/matcher.h"
#include "server/grammar/vocabulary.h"

namespace lintel::grammar {

// Work of masks: a unit is about 5 ns. The default is what a row may take in a step (2 ms).
inline constexpr std::size_t kMaskBudget = 400'000;
// Work of stacks for one mask, 1 s: beyond it the grammar is too ambiguous. Grammars of expressions
// take some 15 million units for 250,000 tokens.
inline constexpr std::size_t kMaxMaskWork = 200'000'000;

class MaskMaker;

// Used by one thread at a time; copies are independent and cost a few references, as the mask is
// not copied.
class TokenMatcher {
 public:
  TokenMatcher(std::shared_ptr<const Grammar> grammar,
               std::shared_ptr<const Vocabulary> vocabulary);
  TokenMatcher(const TokenMatcher& other);
  TokenMatcher(TokenMatcher&&) noexcept;
  TokenMatcher& operator=(const TokenMatcher& other);
  TokenMatcher& operator=(TokenMatcher&&) noexcept;
  ~TokenMatcher();

  // Makes the mask of the next token, or continues to. False: *budget was used up, and another call
  // is needed. The budget is reduced by the work, that of the last token included; one automaton's
  // first visit may exceed it by its walk through the vocabulary (1 to 2 ms), and one alternative
  // by its step (1 ms).
  bool prepare(std::size_t* budget);
  // The tokens that may come next: a bit for each id. Empty words alone: no token is left, which
  // cannot happen with a vocabulary that has every byte. Made without a budget if prepare() has not
  // done it. Valid until the matcher changes.
  std::span<const std::uint64_t> mask();
  // True if the text so far or its mask takes more work than is served, which depends on grammar,
  // vocabulary and text alone. The mask is empty then.
  bool exceeded() const;
  // The only byte that may come next, be it of a token or not; -1: there are several, or none. For
  // an error of an empty mask.
  int needed_byte() const;
  // The only token of the mask; -1: there are several, or none.
  std::int32_t only_token();

  // False: the token cannot come next, and the matcher stays as it was. An end token ends the text.
  bool advance(std::int32_t token);
  // The same for a text that is no token.
  bool advance_text(std::string_view text);
  // True if an end token may come next.
  bool accepts() const { return matcher_.accepts() && !ended_; }
  // True if an end token has come.
  bool ended() const { return ended_; }

  const Matcher& matcher() const { return matcher_; }
  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  Matcher matcher_;
  bool ended_ = false;
  std::size_t owed_ = 0;              // work of tokens, for the budget of the next mask
  std::unique_ptr<MaskMaker> maker_;  // of the mask; made when it is first asked for
};

// Makes the masks that grammars share: the insides of JSON's texts and keys, and the states of
// `automata`. For when a model is loaded; takes about 1 ms for a state in which most tokens
// may come.
void warm_masks(const Vocabulary& vocabulary,
                std::span<const std::shared_ptr<const Dfa>> automata = {});

}  // namespace lintel::grammar
