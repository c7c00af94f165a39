// SPDX-License-Identifier: Apache-2.0
// GrammarConstraint: the grammar that a request's new tokens follow, and how far each sample is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "server/grammar/call_finder.h"
#include "server/grammar/grammar.h"
#include "server/grammar/token_matcher.h"
#include "server/grammar/vocabulary.h"

namespace lintel {

// The text of a sample's new tokens is one of the grammar's; an end of the text is a stop token of
// the request. Tokens are masked before they are drawn, so that seed and position still decide what
// is drawn, with draft tokens and without, alone and in a batch. Log2-probabilities are those of
// the model, before the mask.
//
// - Stop tokens may come where the grammar accepts, and nowhere else unless they are a part of the
//   text. After a text that cannot continue nothing else may come. Stop strings and limits end a
//   sample as without a grammar, also amid a text.
// - A given token, or one of GenerationRequest::drawn, that cannot come next ends the constraint of
//   its sample: all later tokens are drawn freely. So does a given end token.
// - after_reasoning: tokens are free until the text of the new tokens has `reasoning_end`; the text
//   begins with the first new token, the prompt's is not looked at. The token that completes it
//   ends with it, or has white space (blank, tab, CR, LF) alone after it. Tokens of white space
//   alone may follow; those with which the grammar may begin are the grammar's, and from the first
//   of its tokens on only the grammar decides.
// - calls: a call that begins in the reasoning (grammar::CallFinder) ends it as well, and the text
//   begins with its tag. A token with which a call begins is one that `calls->grammar` takes.
struct GrammarConstraint {
  std::shared_ptr<const grammar::Grammar> grammar;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;  // of the model, every byte among it
  bool after_reasoning = false;
  std::string reasoning_end = "</think>";
  struct Calls {
    grammar::ToolDialect dialect = grammar::ToolDialect::kHermes;
    std::shared_ptr<const grammar::Grammar> grammar;  // of texts that begin with a call, at least
  };
  std::optional<Calls> calls;  // with after_reasoning; none: calls are not looked for in it
};

// The rules that all samples of a request share. Immutable.
class ConstraintRules {
 public:
  // REQUIRES: grammar, vocabulary; with after_reasoning a tokenizer, which outlives the rules.
  ConstraintRules(GrammarConstraint constraint, std::vector<std::int32_t> stop_tokens,
                  const Tokenizer* tokenizer);

 private:
  friend class ConstraintState;

  // The text of a token; special ones are spelt.
  std::string_view text_of(std::int32_t token) const;

  GrammarConstraint constraint_;
  std::vector<std::int32_t> stop_tokens_;
  const Tokenizer* tokenizer_;
  // Tokens of white space alone, and tokens that may complete reasoning_end and have more than
  // white space after it. Filled with after_reasoning.
  std::vector<std::int32_t> blank_;
  std::vector<std::int32_t> overlong_;
  // Tokens with which a call may begin. Filled with calls.
  struct CallTokens {
    std::vector<std::int32_t> whole;  // that need no text before
    std::vector<std::int32_t> others;
  };
  std::map<char, CallTokens> call_tokens_;  // by their first byte
};

// The progress of one sample's new tokens. Used by one thread at a time.
class ConstraintState {
 public:
  // `rules` outlive the object.
  explicit ConstraintState(const ConstraintRules& rules);

  // True if the mask of the next token is made.
  bool ready() const { return ready_; }
  // Makes it, or continues to, with what is left of *budget (TokenMatcher::prepare). Returns
  // ready().
  bool prepare(std::size_t* budget);
  // True if the text or its next mask takes more work than is served (TokenMatcher::exceeded).
  bool exceeded() const {
    return (phase_ == Phase::kBeforeText || phase_ == Phase::kText) && matcher_.exceeded();
  }
  // The only byte that the grammar permits next; -1: there are several, or none.
  int needed_byte() const { return matcher_.needed_byte(); }
  // The tokens that may come next, in the memory of `words`; empty: all. Without a bit set: none,
  // which cannot happen with a vocabulary that has every byte. REQUIRES: ready(), not exceeded().
  std::span<const std::uint64_t> mask(grammar::MaskWords& words);
  // Takes the next new token, sampled or given.
  void advance(std::int32_t token);

 private:
  enum class Phase {
    kReasoning,
    kBeforeText,  // white space after the reasoning
    kText,
    kFree,
  };
  void enter(Phase phase);
  // The mask of the next token of the reasoning is not made yet.
  void begin_reasoning_mask();
  std::span<const std::uint64_t> mask_reasoning(grammar::MaskWords& words) const;
  // Finds tokens with which a call would begin that no grammar takes, or continues to. False: the
  // budget was used up.
  bool find_refused_calls(std::size_t* budget);
  void forbid(std::int32_t token, grammar::MaskWords& words) const;
  // True if the reasoning so far ends with a beginning of reasoning_end.
  bool begins_end() const;
  // The place in the next token's `text` where the reasoning has ended; npos: it has not.
  std::size_t find_end(std::string_view text) const;

  const ConstraintRules* rules_;
  grammar::TokenMatcher matcher_;
  Phase phase_ = Phase::kText;
  bool ready_ = false;
  std::string reasoning_;                      // its last bytes, fewer than reasoning_end has
  std::optional<grammar::CallFinder> finder_;  // of calls in the reasoning
  // The mask of the reasoning while it is made: tokens that have been looked at, by their first
  // byte and number, and those that no grammar takes.
  std::map<char, ConstraintRules::CallTokens>::const_iterator next_calls_;
  std::size_t next_call_ = 0;
  std::vector<std::int32_t> refused_calls_;
};

}  // namespace lintel
