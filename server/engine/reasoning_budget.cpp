// SPDX-License-Identifier: Apache-2.0
#include "server/engine/reasoning_budget.h"

#include <algorithm>

namespace lintel {

ReasoningBudgetState::ReasoningBudgetState(const ReasoningBudget& budget,
                                           const Tokenizer& tokenizer)
    : budget_(&budget), tokenizer_(&tokenizer) {
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
  read(tokenizer_->bytes_of(token));
  check_budget();
}

void ReasoningBudgetState::read(std::string_view text) {
  if (phase_ == Phase::kBefore) {
    text_ += text;
    text_.erase(0, text_.find_first_not_of(" \t\r\n"));
    const std::string& tag = budget_->begin_tag;
    if (text_.starts_with(tag)) {
      text_.erase(0, tag.size());
      phase_ = Phase::kReasoning;
    } else if (!tag.starts_with(text_)) {
      phase_ = Phase::kOver;
    }
  } else if (phase_ == Phase::kReasoning) {
    text_ += text;
  }
  if (phase_ != Phase::kReasoning) return;
  if (has_ended()) {
    phase_ = Phase::kOver;
    return;
  }
  std::size_t longest = budget_->end_tag.size();
  for (const std::string& tag : budget_->call_tags) longest = std::max(longest, tag.size());
  if (text_.size() <= longest) return;
  text_.erase(0, text_.size() - longest);
  is_whole_ = false;
}

bool ReasoningBudgetState::has_ended() const {
  if (text_.find(budget_->end_tag) != std::string::npos) return true;
  return std::ranges::any_of(budget_->call_tags, [&](const std::string& tag) {
    return (is_whole_ && text_.starts_with(tag)) || text_.find("\n" + tag) != std::string::npos;
  });
}

void ReasoningBudgetState::check_budget() {
  if (phase_ == Phase::kReasoning && tokens_ >= budget_->tokens) phase_ = Phase::kEnding;
}

}  // namespace lintel
