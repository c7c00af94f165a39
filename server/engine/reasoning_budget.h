// SPDX-License-Identifier: Apache-2.0
// ReasoningBudget: how many tokens of reasoning a sample may draw before the server ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "server/grammar/call_finder.h"

namespace lintel {

// Once the reasoning has so many tokens, the next ones are those of `end`, one at a position, with
// any output of the model. They are tokens that were drawn in all other respects: a draft of
// another token is rejected, a grammar takes them, log2-probabilities are the model's.
//
// Reasoning begins where the text of the new tokens, after `before`, begins with white space and
// `begin_tag`. It ends with `end_tag`, or where a call of the dialect `calls` begins.
// Tokens that begin within it count. A given token in place of one of `end` ends the budget.
struct ReasoningBudget {
  std::int64_t tokens = 0;
  std::vector<std::int32_t> end;  // at least one
  std::string before;             // what the prompt has of the reasoning: "<think>", or nothing
  std::optional<grammar::ToolDialect> calls;
  std::string begin_tag = "<think>";
  std::string end_tag = "</think>";
};

// The progress of one sample. Used by one thread at a time.
class ReasoningBudgetState {
 public:
  // Both outlive the object.
  ReasoningBudgetState(const ReasoningBudget& budget, const Tokenizer& tokenizer);

  // The next token, if the budget decides it.
  std::optional<std::int32_t> forced() const;
  // Takes the next new token, sampled or given.
  void advance(std::int32_t token);

 private:
  enum class Phase {
    kBefore,
    kReasoning,
    kEnding,
    kOver,
  };
  // The same for a text that is no token of its own.
  void read(std::string_view text);
  void read_reasoning(std::string_view text);
  void check_budget();

  const ReasoningBudget* budget_;
  const Tokenizer* tokenizer_;
  Phase phase_ = Phase::kBefore;
  // The text before the reasoning, but for white space. Within the reasoning, its last bytes, fewer
  // than `end_tag` has.
  std::string text_;
  std::optional<grammar::CallFinder> finder_;
  std::int64_t tokens_ = 0;
  std::size_t ended_ = 0;  // tokens of `end` that came
};

}  // namespace lintel
