// SPDX-License-Identifier: Apache-2.0
#include "server/engine/drafter.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <span>
#include <utility>

#include "model/core/tensor.h"
#include "server/engine/row_planner.h"

namespace lintel {
namespace {

constexpr std::size_t kMostAssumed = 64;  // tokens ahead
constexpr std::size_t kLongestRow = 8192;

struct Sizes {
  std::size_t entries = 1024;   // of a context, a power of two
  std::size_t to_learn = 1024;  // observed tokens that wait; of more the last ones count
};
// Checkpoints read long prompts, whose passages return in the answer; their steps take so long, and
// their states are so large, that larger tables are nothing beside them.
Sizes sizes_of(const ModelConfig& config) {
  return config.family.empty() ? Sizes{} : Sizes{.entries = 16'384, .to_learn = 8192};
}

// Drafts that are learnt from weigh half as much after this many that were expected to be right.
constexpr float kMemory = 32.0f;
// The weight of a context's own claim before there is a record: as if so many drafts had been as
// right as it says.
constexpr float kBelief = 4.0f;
// The least trust, so that a request that has been unpredictable may become predictable.
constexpr float kLeastTrust = 0.25f;

constexpr std::size_t kMostContexts = 4;

// Tokens a ring needs where contexts look back this far.
std::size_t history_size(std::size_t longest, const Sizes& sizes) {
  return std::bit_ceil(longest + sizes.to_learn + kMostAssumed + 1);
}

}  // namespace

std::size_t Drafter::bytes(const ModelConfig& config) {
  const auto row = static_cast<std::size_t>(std::max(config.image.width, 0)) *
                   static_cast<std::size_t>(std::max(config.image.channels, 0));
  const std::size_t longest = std::max<std::size_t>(std::min(row, kLongestRow), 6);
  const Sizes sizes = sizes_of(config);
  return sizeof(Drafter) + kMostContexts * (sizeof(Context) + sizes.entries * sizeof(Entry)) +
         history_size(longest, sizes) * sizeof(std::int32_t);
}

Drafter::Drafter(const ModelConfig& config) {
  const auto add = [this](std::initializer_list<std::size_t> back) {
    Context context{.expected_right = kBelief, .right = kBelief};
    for (const std::size_t distance : back) {
      context.back[context.length++] = static_cast<std::uint16_t>(distance);
      longest_ = std::max(longest_, distance);
    }
    contexts_.push_back(context);
  };
  const auto channels = static_cast<std::size_t>(std::max(config.image.channels, 0));
  const std::size_t row = static_cast<std::size_t>(std::max(config.image.width, 0)) * channels;
  // The contexts that saved most steps for samples of MNIST models, and source code and prose as
  // bytes.
  if (config.modality == ModalityKind::kImage && row > 2 * channels && row <= kLongestRow) {
    if (channels == 1) {
      add({1, row, row - 1, row - 2});
      add({row, row - 1});
      add({1});
    } else {
      add({1, channels, row, row - channels});
      add({1, channels, row});
      add({channels, row});
    }
  } else {
    add({1, 2, 3, 4, 5, 6});
    add({1, 2, 3, 4});
    add({1, 2, 3});
    add({1, 2});
  }
  const Sizes sizes = sizes_of(config);
  num_entries_ = sizes.entries;
  most_to_learn_ = sizes.to_learn;
  entries_.resize(contexts_.size() * num_entries_);
  assert(contexts_.size() <= kMostContexts);
  history_.resize(history_size(longest_, sizes), -1);
}

Drafter::~Drafter() {
  zero_memory(std::span(entries_));
  zero_memory(std::span(history_));
}

std::int32_t Drafter::back(std::uint64_t next, std::size_t distance) const {
  return distance > next ? -1 : history_[(next - distance) & (history_.size() - 1)];
}

std::uint64_t Drafter::hash(std::uint64_t next, std::size_t context) const {
  std::uint64_t hash = context + 1;
  for (std::size_t i = 0; i < contexts_[context].length; ++i) {
    hash ^= static_cast<std::uint32_t>(back(next, contexts_[context].back[i]));
    hash *= 0x9E3779B97F4A7C15;  // an odd number near 2^64 / golden ratio
    hash ^= hash >> 29;
  }
  return hash;
}

void Drafter::count(Entry& entry, std::uint16_t tag, std::int32_t token) {
  constexpr std::uint8_t kMostSeen = 48;
  if (entry.seen == 0 || entry.tag != tag) {
    entry = {.token = token, .tag = tag, .hits = 2, .seen = 3};
    return;
  }
  if (entry.seen > kMostSeen) {
    entry.hits /= 2;
    entry.seen /= 2;
  }
  if (entry.token == token) {
    entry.hits += 2;
    entry.seen += 2;
  } else if (entry.hits < 2) {
    entry = {.token = token, .tag = tag, .hits = 2, .seen = 4};
  } else {
    entry.hits /= 2;
    entry.seen = static_cast<std::uint8_t>(entry.seen / 2 + 2);
  }
}

void Drafter::observe(std::int32_t token) {
  assumed_ = 0;
  history_[observed_ & (history_.size() - 1)] = token;
  ++observed_;
}

void Drafter::learn_observed() {
  if (observed_ - learnt_ > most_to_learn_) learnt_ = observed_ - most_to_learn_;
  for (; learnt_ < observed_; ++learnt_) {
    const std::int32_t token = history_[learnt_ & (history_.size() - 1)];
    for (std::size_t c = 0; c < contexts_.size(); ++c) {
      const std::uint64_t h = hash(learnt_, c);
      count(entries_[c * num_entries_ + h % num_entries_], static_cast<std::uint16_t>(h >> 48),
            token);
    }
  }
}

float Drafter::Context::trust() const {
  return std::clamp(right / expected_right, kLeastTrust, 1.0f);
}

Drafter::DraftToken Drafter::next_draft() {
  assert(observed_ > 0);
  learn_observed();
  const std::uint64_t next = observed_ + assumed_;
  DraftToken best{.token = back(next, 1)};
  for (std::size_t c = 0; c < contexts_.size(); ++c) {
    const std::uint64_t h = hash(next, c);
    const Entry& entry = entries_[c * num_entries_ + h % num_entries_];
    if (entry.seen == 0 || entry.tag != static_cast<std::uint16_t>(h >> 48)) continue;
    const float claimed = static_cast<float>(entry.hits) / static_cast<float>(entry.seen + 1);
    const float probability = claimed * contexts_[c].trust();
    if (probability <= best.probability) continue;  // of equals the longest context
    best = {.token = entry.token, .claimed = claimed, .probability = probability, .context = c};
  }
  return best;
}

bool Drafter::assume(std::int32_t token) {
  if (assumed_ == kMostAssumed) return false;
  history_[(observed_ + assumed_) & (history_.size() - 1)] = token;
  ++assumed_;
  return true;
}

void Drafter::learn(const DraftToken& draft, bool right) {
  if (draft.claimed == 0.0f) return;  // no context's
  Context& context = contexts_[draft.context];
  if (context.expected_right > kMemory) {
    context.expected_right /= 2;
    context.right /= 2;
  }
  context.expected_right += draft.claimed;
  if (right) context.right += 1.0f;
}

std::size_t SampleDrafts::bytes(const Transformer& model) {
  const std::size_t bytes = Drafter::bytes(model.config()) + model.draft_state_bytes();
  if (!model.has_draft_head()) return bytes;
  return bytes + static_cast<std::size_t>(model.draft_window()) * sizeof(std::int32_t);
}

void SampleDrafts::begin(int most, std::optional<std::int32_t> pending) {
  drafter_ = std::make_unique<Drafter>(context_.model.config());
  most_ = most;
  reserve();
  if (pending) drafter_->observe(*pending);
}

void SampleDrafts::fork(const SampleDrafts& first) {
  if (first.drafter_ == nullptr) return;
  drafter_ = std::make_unique<Drafter>(*first.drafter_);
  most_ = first.most_;
  reserve();
  if (first.followed_.empty()) return;
  // The draft head has not read the rows of this step yet.
  forked_from_ = &first;
  const bool continues = first.head_state_ && first.head_at_ == first.followed_at_;
  forked_length_ = (continues ? first.head_state_->length() : 0) +
                   static_cast<std::int64_t>(first.followed_.size());
  head_at_ = first.followed_at_ + static_cast<std::int64_t>(first.followed_.size());
}

void SampleDrafts::take_forked_state() {
  const SampleDrafts* const first = std::exchange(forked_from_, nullptr);
  const bool has_read =
      first != nullptr && first->head_state_ && first->head_state_->length() == forked_length_;
  if (!has_read) return;
  head_state_.emplace(context_.model.new_draft_state());
  head_state_->assign(*first->head_state_);
}

void SampleDrafts::observe(std::int32_t token) {
  if (drafter_ != nullptr) drafter_->observe(token);
}

bool SampleDrafts::propose(std::int64_t position, int rows, std::int64_t end) {
  assert(taken_.empty());
  if (drafter_ == nullptr) return false;
  probability_ = 1.0f;
  position_ = position + rows - 1;
  end_ = std::min(position_ + most_, end - 1);  // the last token of all is never fed
  takes_head_ = head_at_ == position_ && !head_.empty();
  // Known tokens before the first sampled one, which the step feeds.
  for (std::int64_t known = position; known < position_; ++known) {
    if (!drafter_->assume(context_.known_token(known)->first)) return false;
  }
  return next();
}

bool SampleDrafts::next() {
  if (position_ >= end_) return false;
  const auto known = context_.known_token(position_);
  in_hand_.is_known = known.has_value();
  in_hand_.proposal = known ? Drafter::DraftToken{.token = known->first} : draft();
  if (!known) {
    probability_ *= in_hand_.proposal.probability;
  } else if (const auto i = static_cast<std::size_t>(position_ - head_at_);
             takes_head_ && (i >= head_.size() || head_[i] != known->first)) {
    takes_head_ = false;
  }
  return true;
}

Drafter::DraftToken SampleDrafts::draft() {
  Drafter::DraftToken found = drafter_->next_draft();
  const auto i = static_cast<std::size_t>(position_ - head_at_);
  takes_head_ = takes_head_ && i < head_.size();
  if (!takes_head_) return found;
  if (found.token == head_[i]) {
    found.probability = std::max(found.probability, head_probabilities_[i]);
  } else if (found.probability < head_probabilities_[i]) {
    found = {.token = head_[i], .probability = head_probabilities_[i]};
  } else {
    takes_head_ = false;
  }
  return found;
}

void SampleDrafts::begin_step(bool reads_prompt) {
  zero_memory(std::span(followed_));
  followed_.clear();
  hidden_ = 0;
  reads_prompt_ = reads_prompt && drafter_ != nullptr;
  has_read_prompt_ = false;
}

void SampleDrafts::follow(std::int64_t position, std::int32_t token, bool is_read,
                          DraftHeadPlan* plan) {
  if (drafter_ == nullptr || plan == nullptr) return;
  const bool is_next = followed_at_ + static_cast<std::int64_t>(followed_.size()) == position;
  if (!is_next || followed_.empty() || followed_.size() == followed_.capacity()) {
    zero_memory(std::span(followed_));
    followed_.clear();
    followed_at_ = position;
    followed_hidden_ = hidden_;
  }
  ++hidden_;
  has_read_prompt_ = has_read_prompt_ || is_read;
  followed_.push_back(token);
  const std::int64_t i = position - head_at_;
  if (i != static_cast<std::int64_t>(head_right_) || head_right_ >= head_.size()) return;
  const bool right = head_[head_right_] == token;
  plan->learn(static_cast<int>(i), right);
  head_right_ = right ? head_right_ + 1 : head_.size();
}

bool SampleDrafts::ask_head(std::size_t first_hidden, int ahead, const DraftHeadPlan& plan,
                            DraftRequest& request) {
  if (drafter_ == nullptr || followed_.empty()) return false;
  if (ahead == 0 && !has_read_prompt_) return false;
  take_forked_state();
  if (!head_state_ || head_at_ != followed_at_) {
    head_state_.emplace(context_.model.new_draft_state());
  }
  head_at_ = followed_at_ + static_cast<std::int64_t>(followed_.size());
  zero_memory(std::span(head_));
  head_.assign(static_cast<std::size_t>(ahead), 0);
  head_right_ = 0;
  head_probabilities_.clear();
  for (int i = 0; i < ahead; ++i) head_probabilities_.push_back(plan.probability(i));
  request = {.state = &*head_state_,
             .first_hidden = first_hidden + followed_hidden_,
             .tokens = followed_,
             .drafts = head_};
  return true;
}

void SampleDrafts::stop_head() {
  begin_step(/*reads_prompt=*/false);
  zero_memory(std::span(head_));
  head_.clear();
  head_state_.reset();
}

void SampleDrafts::reserve() {
  taken_.reserve(static_cast<std::size_t>(most_));
  if (!context_.model.has_draft_head()) return;
  // Memory that a list outgrows would not be zeroed. A step may read the end of a prompt.
  followed_.reserve(static_cast<std::size_t>(most_ + context_.model.draft_window()) + 1);
  head_.reserve(DraftHeadPlan::kMostAhead);
  head_probabilities_.reserve(DraftHeadPlan::kMostAhead);
}

bool SampleDrafts::take() {
  taken_.push_back(in_hand_);
  ++position_;
  return drafter_->assume(in_hand_.proposal.token) && next();
}

int SampleDrafts::num_drafted() const {
  return static_cast<int>(
      std::ranges::count_if(taken_, [](const Draft& draft) { return !draft.is_known; }));
}

SampleDrafts::Verdict SampleDrafts::judge(int i, std::int32_t token) {
  const Draft& draft = taken_[static_cast<std::size_t>(i)];
  if (draft.is_known) return Verdict::kKnown;
  const bool right = token == draft.proposal.token;
  drafter_->learn(draft.proposal, right);
  return right ? Verdict::kRight : Verdict::kWrong;
}

}  // namespace lintel
