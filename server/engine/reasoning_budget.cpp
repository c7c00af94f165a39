// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reasoning_budget.h"

#include <algorithm>

namespace lintel {

ReasoningBudgetState::ReasoningBudgetState(const ReasoningBudget& budget,
                                           const Tokenizer& tokenizer)
    : budget_(&budget), tokenizer_(&tokenizer) {
  if (budget.calls) finder_.emplace(*budget.calls);
  read(budget.before);
  check_budget();
}

std::optional<std::int32_t> ReasoningBudgetState::forced() const {
  if (phase_ != Phase::kEnding) return std::nullopt;
  return budget_->end[ended_];
}

void ReasoningBudgetState::advance(std::int32_t token) {
  if (phase_ == Phase::kEnding) {
    const bool is_next = token == budget_->end[ended_];
    if (!is_next || ++ended_ == budget_->end.size()) phase_ = Phase::kOver;
    return;
  }
  if (phase_ == Phase::kReasoning) ++tokens_;
  const std::string_view bytes = tokenizer_->bytes_of(token);
  read(bytes.empty() ? std::string_view(tokenizer_->text_of_special(token)) : bytes);
  check_budget();
}

void ReasoningBudgetState::read(std::string_view text) {
  if (phase_ == Phase::kReasoning) return read_reasoning(text);
  if (phase_ != Phase::kBefore) return;
  text_ += text;
  text_.erase(0, text_.find_first_not_of(" \t\r\n"));
  const std::string& tag = budget_->begin_tag;
  if (text_.starts_with(tag)) {
    phase_ = Phase::kReasoning;
    const std::string after = text_.substr(tag.size());
    text_.clear();
    read_reasoning(after);
  } else if (!tag.starts_with(text_)) {
    phase_ = Phase::kOver;
  }
}

void ReasoningBudgetState::read_reasoning(std::string_view text) {
  text_ += text;
  const bool calls =
      finder_ && std::ranges::any_of(text, [&](char byte) { return finder_->step(byte); });
  const std::string& tag = budget_->end_tag;
  if (calls || text_.find(tag) != std::string::npos) {
    phase_ = Phase::kOver;
  } else if (text_.size() >= tag.size()) {
    text_.erase(0, text_.size() - tag.size() + 1);
  }
}

void ReasoningBudgetState::check_budget() {
  if (phase_ == Phase::kReasoning && tokens_ >= budget_->tokens) phase_ = Phase::kEnding;
}

}  // namespace lintel
