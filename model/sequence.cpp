#include "model/sequence.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace lintel {
namespace {

constexpr std::size_t kTokenPage = SequenceState::kTokenPage;

// Each layer's part of the block starts at a cache line.
std::size_t padded(std::size_t floats) {
  constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
  return (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

}  // namespace

SequenceState::SequenceState(Backends backends, int vocab_size,
                             std::shared_ptr<const Adapter> adapter, const SequenceLimits& limits)
    : counts(static_cast<std::size_t>(vocab_size), 0),
      backends_(backends),
      limits_(limits),
      adapter_(std::move(adapter)),
      tokens_(kTokenPage) {
  for (const auto& backend : backends_) block_floats_ += padded(backend->block_floats());
  block_ = make_aligned<float>(block_floats_);
  std::size_t offset = 0;
  for (const auto& backend : backends_) {
    layers_.push_back(backend->new_state({block_.get() + offset, backend->block_floats()}));
    offset += padded(backend->block_floats());
  }
}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  if (this == &other) return *this;
  forget();
  origin = std::exchange(other.origin, 0);
  pending = std::exchange(other.pending, std::nullopt);
  counts = std::move(other.counts);
  generated_tail = std::move(other.generated_tail);
  backends_ = other.backends_;
  limits_ = other.limits_;
  adapter_ = std::move(other.adapter_);
  block_floats_ = other.block_floats_;
  layers_ = std::move(other.layers_);
  tokens_ = std::move(other.tokens_);
  block_ = std::move(other.block_);
  position_ = std::exchange(other.position_, 0);
  has_drafts_ = std::exchange(other.has_drafts_, false);
  return *this;
}

SequenceState::~SequenceState() { forget(); }

SequenceState SequenceState::clone() const {
  SequenceState copy(backends_, static_cast<int>(counts.size()), adapter_, limits_);
  copy.assign(*this);
  return copy;
}

void SequenceState::assign(const SequenceState& other) {
  assert(!other.has_drafts_);
  other.settle_layers();
  has_drafts_ = false;
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i]->assign(*other.layers_[i]);
  tokens_.assign(other.tokens_);
  origin = other.origin;
  pending = other.pending;
  counts = other.counts;
  // Room for as much: a tail that grows leaves what it held in the memory that it outgrew.
  generated_tail.reserve(other.generated_tail.capacity());
  generated_tail = other.generated_tail;
  position_ = other.position_;
}

void SequenceState::reset() {
  for (const auto& layer : layers_) layer->reset();
  tokens_.clear();
  forget();
  origin = 0;
  pending.reset();
  generated_tail.clear();
  position_ = 0;
  has_drafts_ = false;
}

std::size_t SequenceState::bytes() const {
  std::size_t total = counts.size() * sizeof(counts[0]) + tokens_.bytes();
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

void SequenceState::take_back(std::int64_t num_rows) {
  if (!std::exchange(has_drafts_, false) && num_rows == 0) return;
  assert(num_rows <= position_);
  position_ -= num_rows;
  for (const auto& layer : layers_) layer->take_back(static_cast<std::size_t>(num_rows));
  if (num_rows == 0 || tokens_.num_pages() == 0) return;
  const auto at = static_cast<std::size_t>(position_);
  for (std::size_t i = at; i < at + static_cast<std::size_t>(num_rows); ++i) {
    tokens_.page(i / kTokenPage)[i % kTokenPage] = 0;
  }
  tokens_.shrink_to((at + kTokenPage - 1) / kTokenPage);
}

void SequenceState::settle() {
  take_back(0);
  settle_layers();
}

void SequenceState::settle_layers() const {
  for (const auto& layer : layers_) layer->settle();
}

void SequenceState::remember(std::int32_t token) {
  const auto at = static_cast<std::size_t>(position_);
  tokens_.grow_to(at / kTokenPage + 1);
  tokens_.page(at / kTokenPage)[at % kTokenPage] = token;
  ++position_;
}

std::int32_t SequenceState::token(std::int64_t position) const {
  const auto at = static_cast<std::size_t>(position);
  return tokens_.page(at / kTokenPage)[at % kTokenPage];
}

std::size_t SequenceState::token_bytes(std::int64_t num_tokens) {
  const std::size_t pages = (static_cast<std::size_t>(num_tokens) + kTokenPage - 1) / kTokenPage;
  return PagedArray<std::int32_t>::bytes_of(pages, kTokenPage);
}

void SequenceState::forget() {
  if (block_ != nullptr) zero_memory(std::span(block_.get(), block_floats_));
  zero_memory(std::span(counts));
  // The capacity too: a longer tail may have been there.
  generated_tail.resize(generated_tail.capacity());
  zero_memory(std::span(generated_tail));
}

}  // namespace lintel
