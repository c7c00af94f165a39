#include "server/engine/sample_drafts.h"

#include <algorithm>
#include <cassert>

namespace lintel {

void SampleDrafts::begin(int most, std::optional<std::int32_t> pending) {
  drafter_ = std::make_unique<Drafter>(context_.model.config());
  most_ = most;
  taken_.reserve(static_cast<std::size_t>(most_));
  if (pending) drafter_->observe(*pending);
}

void SampleDrafts::fork(const SampleDrafts& first) {
  if (first.drafter_ == nullptr) return;
  drafter_ = std::make_unique<Drafter>(*first.drafter_);
  most_ = first.most_;
  taken_.reserve(static_cast<std::size_t>(most_));
}

void SampleDrafts::observe(std::int32_t value) {
  if (drafter_ != nullptr) drafter_->observe(value);
}

bool SampleDrafts::propose(std::int64_t position, int rows, std::int64_t end) {
  assert(taken_.empty());
  if (drafter_ == nullptr) return false;
  probability_ = 1.0f;
  position_ = position + rows - 1;
  end_ = std::min(position_ + most_, end - 1);  // the last token of all is never fed
  // Known tokens before the first sampled one, which the step feeds.
  for (std::int64_t known = position; known < position_; ++known) {
    if (!drafter_->assume(context_.known_value(known)->first)) return false;
  }
  return next();
}

bool SampleDrafts::next() {
  if (position_ >= end_) return false;
  const auto known = context_.known_value(position_);
  in_hand_.is_known = known.has_value();
  in_hand_.guess = known ? Drafter::Guess{.value = known->first} : drafter_->guess();
  if (!known) probability_ *= in_hand_.guess.probability;
  return true;
}

bool SampleDrafts::take() {
  taken_.push_back(in_hand_);
  ++position_;
  return drafter_->assume(in_hand_.guess.value) && next();
}

int SampleDrafts::guesses() const {
  return static_cast<int>(
      std::ranges::count_if(taken_, [](const Draft& draft) { return !draft.is_known; }));
}

SampleDrafts::Verdict SampleDrafts::judge(int i, std::int32_t value) {
  const Draft& draft = taken_[static_cast<std::size_t>(i)];
  if (draft.is_known) return Verdict::kKnown;
  const bool right = value == draft.guess.value;
  drafter_->learn(draft.guess, right);
  return right ? Verdict::kRight : Verdict::kWrong;
}

}  // namespace lintel
