// SPDX-License-Identifier: Apache-2.0
#include "server/engine/grammar_constraint.h"

#include <algorithm>
#include <cassert>
#include <string_view>
#include <utility>

namespace lintel {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
// Work of a look at a token with which a call may begin, in the units of masks.
constexpr std::size_t kCallTokenCost = 20;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

void set_bit(std::int32_t token, std::span<std::uint64_t> words) {
  words[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
}

void clear_bit(std::int32_t token, std::span<std::uint64_t> words) {
  words[static_cast<std::size_t>(token) / 64] &= ~(std::uint64_t{1} << (token % 64));
}

// True if some text before `text` makes it complete `end` and have more than white space after it.
bool may_be_overlong(std::string_view text, std::string_view end) {
  for (std::size_t at = text.find(end.back()); at != std::string_view::npos;
       at = text.find(end.back(), at + 1)) {
    const std::string_view before = text.substr(0, at + 1);
    const bool completes =
        before.size() < end.size() ? end.ends_with(before) : before.ends_with(end);
    if (completes && !is_blank(text.substr(at + 1))) return true;
  }
  return false;
}

}  // namespace

ConstraintRules::ConstraintRules(GrammarConstraint constraint,
                                 std::vector<std::int32_t> stop_tokens, const Tokenizer* tokenizer)
    : constraint_(std::move(constraint)),
      stop_tokens_(std::move(stop_tokens)),
      tokenizer_(tokenizer) {
  if (!constraint_.after_reasoning) return;
  const auto size = static_cast<std::int32_t>(constraint_.vocabulary->size());
  for (std::int32_t token = 0; token < size; ++token) {
    const std::string_view text = text_of(token);
    if (text.empty()) continue;
    if (is_blank(text)) blank_.push_back(token);
    if (may_be_overlong(text, constraint_.reasoning_end)) overlong_.push_back(token);
    if (!constraint_.calls) continue;
    const auto may_begin = [&](bool whole) {
      return grammar::CallFinder::may_begin_in(constraint_.calls->dialect, text, whole);
    };
    if (!may_begin(/*whole=*/false)) continue;
    CallTokens& tokens = call_tokens_[text[0]];
    (may_begin(/*whole=*/true) ? tokens.whole : tokens.others).push_back(token);
  }
}

std::string_view ConstraintRules::text_of(std::int32_t token) const {
  const std::string_view bytes = tokenizer_->bytes_of(token);
  return bytes.empty() ? tokenizer_->text_of_special(token) : bytes;
}

ConstraintState::ConstraintState(const ConstraintRules& rules)
    : rules_(&rules), matcher_(rules.constraint_.grammar, rules.constraint_.vocabulary) {
  enter(rules.constraint_.after_reasoning ? Phase::kReasoning : Phase::kText);
  if (phase_ == Phase::kReasoning && rules.constraint_.calls) {
    finder_.emplace(rules.constraint_.calls->dialect);
    begin_reasoning_mask();
  }
}

void ConstraintState::enter(Phase phase) {
  phase_ = phase;
  ready_ = phase == Phase::kReasoning || phase == Phase::kFree;
}

void ConstraintState::begin_reasoning_mask() {
  ready_ = false;
  next_calls_ = rules_->call_tokens_.begin();
  next_call_ = 0;
  refused_calls_.clear();
}

bool ConstraintState::prepare(std::size_t* budget) {
  if (!ready_ && *budget > 0) {
    ready_ = phase_ == Phase::kReasoning ? find_refused_calls(budget) : matcher_.prepare(budget);
  }
  return ready_;
}

std::span<const std::uint64_t> ConstraintState::mask(grammar::MaskWords& words) {
  assert(ready_);
  if (phase_ == Phase::kFree) return {};
  if (phase_ == Phase::kReasoning) return mask_reasoning(words);
  const std::span<const std::uint64_t> made = matcher_.mask();
  words.assign(made.begin(), made.end());
  // The request decides which tokens end its text.
  for (const std::int32_t token : matcher_.vocabulary()->end_tokens()) clear_bit(token, words);
  if (matcher_.accepts()) {
    for (const std::int32_t token : rules_->stop_tokens_) set_bit(token, words);
  }
  if (phase_ == Phase::kBeforeText) {
    for (const std::int32_t token : rules_->blank_) set_bit(token, words);
  }
  return words;
}

std::span<const std::uint64_t> ConstraintState::mask_reasoning(grammar::MaskWords& words) const {
  words.clear();
  const bool has_begun = begins_end();
  for (const std::int32_t token : rules_->overlong_) {
    const std::string_view text = rules_->text_of(token);
    if (!has_begun && text.size() <= rules_->constraint_.reasoning_end.size()) continue;
    const std::size_t end = find_end(text);
    if (end == std::string_view::npos || is_blank(text.substr(end))) continue;
    forbid(token, words);
  }
  for (const std::int32_t token : refused_calls_) forbid(token, words);
  return words;
}

void ConstraintState::forbid(std::int32_t token, grammar::MaskWords& words) const {
  if (words.empty()) words.resize(matcher_.vocabulary()->mask_words(), ~std::uint64_t{0});
  clear_bit(token, words);
}

bool ConstraintState::find_refused_calls(std::size_t* budget) {
  const auto spend = [&](std::size_t work) { *budget -= std::min(work, *budget); };
  const std::string partial = finder_->text();
  std::optional<grammar::Matcher> start, after_partial;  // none there: no grammar takes `partial`
  // True if the token begins no call, or one that the grammar takes.
  const auto is_taken = [&](std::int32_t token) {
    const std::string_view text = rules_->text_of(token);
    const std::size_t size = std::min(find_end(text), text.size());
    grammar::CallFinder finder = *finder_;
    std::size_t at = 0;
    while (at < size && !finder.step(text[at])) ++at;
    spend(kCallTokenCost + at * (1 + partial.size() / 16));
    if (at == size) return true;
    std::size_t work = 0;
    if (!start) {
      start.emplace(rules_->constraint_.calls->grammar);
      after_partial = start;
      if (!after_partial->advance(partial, &work)) after_partial.reset();
    }
    const std::string call = finder.text() + std::string(text.substr(at + 1));
    const bool is_continued = call.starts_with(partial);
    std::optional<grammar::Matcher> matcher = is_continued ? after_partial : start;
    const bool taken =
        matcher &&
        matcher->advance(std::string_view(call).substr(is_continued ? partial.size() : 0), &work);
    spend(work);
    return taken;
  };
  bool is_first = true;
  for (; next_calls_ != rules_->call_tokens_.end(); ++next_calls_, next_call_ = 0) {
    const auto& [first, tokens] = *next_calls_;
    std::size_t count = tokens.whole.size();
    if (!partial.empty()) {
      // Others continue what is there.
      grammar::CallFinder finder = *finder_;
      spend(kCallTokenCost);
      if (finder.step(first) || !finder.text().empty()) count += tokens.others.size();
    }
    for (; next_call_ < count; ++next_call_, is_first = false) {
      if (*budget == 0 && !is_first) return false;
      const std::int32_t token = next_call_ < tokens.whole.size()
                                     ? tokens.whole[next_call_]
                                     : tokens.others[next_call_ - tokens.whole.size()];
      if (!is_taken(token)) refused_calls_.push_back(token);
    }
  }
  return true;
}

bool ConstraintState::begins_end() const {
  for (std::size_t at = 0; at < reasoning_.size(); ++at) {
    const std::string_view last = std::string_view(reasoning_).substr(at);
    if (rules_->constraint_.reasoning_end.starts_with(last)) return true;
  }
  return false;
}

std::size_t ConstraintState::find_end(std::string_view text) const {
  const std::string& end = rules_->constraint_.reasoning_end;
  // Looks for an end that begins in earlier tokens first, then for one within this token.
  for (std::size_t left = std::min(reasoning_.size(), end.size() - 1); left > 0; --left) {
    if (!end.starts_with(std::string_view(reasoning_).substr(reasoning_.size() - left))) continue;
    if (text.starts_with(std::string_view(end).substr(left))) return end.size() - left;
  }
  const std::size_t at = text.find(end);
  return at == std::string_view::npos ? at : at + end.size();
}

void ConstraintState::advance(std::int32_t token) {
  switch (phase_) {
    case Phase::kFree:
      return;
    case Phase::kReasoning: {
      const std::string_view text = rules_->text_of(token);
      const std::size_t end = find_end(text);
      if (finder_) {
        const std::size_t size = std::min(end, text.size());
        for (std::size_t at = 0; at < size; ++at) {
          if (!finder_->step(text[at])) continue;
          matcher_ = grammar::TokenMatcher(rules_->constraint_.calls->grammar,
                                           rules_->constraint_.vocabulary);
          const std::string call = finder_->text() + std::string(text.substr(at + 1));
          enter(matcher_.advance_text(call) ? Phase::kText : Phase::kFree);
          return;
        }
      }
      if (end != std::string_view::npos) {
        enter(is_blank(text.substr(end)) ? Phase::kBeforeText : Phase::kFree);
        return;
      }
      reasoning_ += text;
      const std::size_t kept = rules_->constraint_.reasoning_end.size() - 1;
      if (reasoning_.size() > kept) reasoning_.erase(0, reasoning_.size() - kept);
      if (finder_) begin_reasoning_mask();
      return;
    }
    case Phase::kBeforeText:
    case Phase::kText:
      break;
  }
  if (matcher_.advance(token)) return enter(matcher_.ended() ? Phase::kFree : Phase::kText);
  if (phase_ == Phase::kBeforeText && std::ranges::binary_search(rules_->blank_, token)) return;
  enter(Phase::kFree);
}

}  // namespace lintel
