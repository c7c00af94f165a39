// SPDX-License-Identifier: Apache-2.0
#include "model/sequence.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <string>
#include <utility>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"

namespace lintel {
namespace {

constexpr std::size_t kTokenPage = SequenceState::kTokenPage;

// Each layer's part of the block starts at a cache line.
std::size_t padded(std::size_t floats) {
  constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
  return (floats + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
}

}  // namespace

SequenceState::SequenceState(Layouts layouts, int vocab_size,
                             std::shared_ptr<const Adapter> adapter, const SequenceLimits& limits)
    : counts(static_cast<std::size_t>(vocab_size)),
      layouts_(layouts),
      limits_(limits),
      adapter_(std::move(adapter)),
      tokens_(kTokenPage) {
  for (const auto& layout : layouts_) block_floats_ += padded(layout->block_floats());
  block_ = make_aligned<float>(block_floats_);
  std::size_t offset = 0;
  for (const auto& layout : layouts_) {
    layers_.push_back(layout->new_state({block_.get() + offset, layout->block_floats()}));
    offset += padded(layout->block_floats());
  }
}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  if (this == &other) return *this;
  forget();
  origin = std::exchange(other.origin, 0);
  pending = std::exchange(other.pending, std::nullopt);
  counts = std::move(other.counts);
  generated_tail = std::move(other.generated_tail);
  layouts_ = other.layouts_;
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
  SequenceState copy(layouts_, static_cast<int>(counts.vocab_size()), adapter_, limits_);
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
  std::size_t total = counts.bytes() + tokens_.bytes();
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

void SequenceState::rollback(std::int64_t num_rows) {
  if (!std::exchange(has_drafts_, false) && num_rows == 0) return;
  assert(num_rows <= position_);
  position_ -= num_rows;
  for (const auto& layer : layers_) layer->rollback(static_cast<std::size_t>(num_rows));
  if (num_rows == 0 || tokens_.num_pages() == 0) return;
  const auto at = static_cast<std::size_t>(position_);
  for (std::size_t i = at; i < at + static_cast<std::size_t>(num_rows); ++i) {
    tokens_.page(i / kTokenPage)[i % kTokenPage] = 0;
  }
  tokens_.shrink_to((at + kTokenPage - 1) / kTokenPage);
}

void SequenceState::settle() {
  rollback(0);
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
  counts.clear();
  // The capacity too: a longer tail may have been there.
  generated_tail.resize(generated_tail.capacity());
  zero_memory(std::span(generated_tail));
}

// A sequence as bytes: SequenceState::save and load.

namespace {

constexpr std::int32_t kNothingPending = -1;
// Far beyond every sequence, and positions can still be counted on from it.
constexpr std::int64_t kMostPositions = std::int64_t{1} << 62;

// Throws ModelError unless lowest <= found <= highest.
void check_range(const char* what, std::int64_t found, std::int64_t lowest, std::int64_t highest) {
  if (found >= lowest && found <= highest) return;
  throw ModelError(std::string("saved sequence: found ") + what + " " + std::to_string(found) +
                   ", expected " + std::to_string(lowest) + " to " + std::to_string(highest));
}

void check_size(const char* what, std::size_t found, std::size_t expected) {
  const auto size = static_cast<std::int64_t>(expected);
  check_range(what, static_cast<std::int64_t>(found), size, size);
}

}  // namespace

namespace {

// Counts what is not in full pages.
class BytesWithoutPages final : public StateWriter {
 public:
  std::size_t bytes() const { return bytes_; }
  void block(const SharedBlock& block, std::int64_t end) override {
    if (end == 0) values(block.bytes());
  }

 private:
  void write(std::span<const std::byte> from) override { bytes_ += from.size(); }

  std::size_t bytes_ = 0;
};

}  // namespace

std::int64_t SequenceState::full_pages() const {
  const std::int64_t tokens = origin == 0 ? page_tokens(layouts_) : 0;
  return tokens == 0 ? 0 : position_ / tokens * tokens;
}

void SequenceState::save_pages(std::int64_t from, std::vector<std::byte>& bytes,
                               std::vector<PageRun>& pages) const {
  constexpr std::int64_t kMostPages = 256;
  const std::int64_t end = full_pages();
  assert(0 <= from && from <= end);
  const std::int64_t tokens = page_tokens(layouts_);
  const std::size_t first = pages.size();
  while (from < end) {
    const auto left = static_cast<std::uint64_t>((end - from) / tokens);
    const std::int64_t run = std::min(static_cast<std::int64_t>(std::bit_floor(left)), kMostPages);
    pages.push_back({.first = from, .end = from + run * tokens, .blocks = {}});
    from += run * tokens;
  }
  BytesWithoutPages count;
  save(count);
  bytes.reserve(bytes.size() + count.bytes());  // memory that a vector outgrows is not zeroed
  PagedStateWriter writer(bytes, std::span(pages).subspan(first), from);
  save(writer);
}

void SequenceState::save(StateWriter& writer) const {
  assert(generated_tail.size() <= kMostTailBytes && !has_drafts_);
  settle_layers();
  writer.value(position_);
  writer.value(pending.value_or(kNothingPending));
  writer.value(static_cast<std::uint32_t>(generated_tail.size()));
  writer.value(counts.header());
  writer.value(static_cast<std::uint32_t>(layers_.size()));
  writer.value(origin);
  writer.values(std::span<const char>(generated_tail));
  counts.save(writer);
  for (const auto& layer : layers_) layer->save(/*since=*/0, writer);
  if (!layers_.empty()) return;
  const auto tokens = static_cast<std::size_t>(position_);
  for (std::size_t t = 0; t < tokens; t += kTokenPage) {
    writer.values(std::span<const std::int32_t>(tokens_.page(t / kTokenPage),
                                                std::min(kTokenPage, tokens - t)));
  }
}

std::size_t SequenceState::saved_bytes() const {
  StateByteCount count;
  save(count);
  return count.bytes();
}

void SequenceState::load(StateReader& reader, std::int64_t most_tokens) {
  assert(num_tokens() == 0);
  try {
    load_all(reader, most_tokens);
  } catch (...) {
    reset();
    throw;
  }
}

void SequenceState::load_all(StateReader& reader, std::int64_t most_tokens) {
  const auto position = reader.value<std::int64_t>();
  const auto token = reader.value<std::int32_t>();
  const auto tail_bytes = reader.value<std::uint32_t>();
  const auto num_counts = reader.value<std::uint32_t>();
  const auto num_layers = reader.value<std::uint32_t>();
  const auto begin = reader.value<std::int64_t>();
  const std::int64_t max_length = limits_.max_length == 0 ? kMostPositions : limits_.max_length;
  check_range("position", position, 0, max_length);
  check_range("pending token", token, kNothingPending, limits_.vocab_size - 1);
  const std::int64_t num_tokens = position + (token == kNothingPending ? 0 : 1);
  check_range("tokens", num_tokens, 0, most_tokens);
  check_range("tail of bytes", tail_bytes, 0, static_cast<std::int64_t>(kMostTailBytes));
  check_size("layers", num_layers, layers_.size());
  check_range("origin", begin, 0, kMostPositions - position);

  if (tail_bytes > 0) {
    // A tail that grows would leave what it held in the memory that it outgrew.
    generated_tail.reserve(kMostTailBytes);
    generated_tail.resize(tail_bytes);
    reader.values(std::span<char>(generated_tail));
  }
  counts.load(num_counts, begin + num_tokens, reader);
  for (const auto& layer : layers_) layer->load(position, reader);
  if (layers_.empty()) {
    const auto tokens = static_cast<std::size_t>(position);
    for (std::size_t t = 0; t < tokens; t += kTokenPage) {
      tokens_.grow_to(t / kTokenPage + 1);  // not all at once: the position may be a lie
      const std::span page(tokens_.page(t / kTokenPage), std::min(kTokenPage, tokens - t));
      reader.values(page);
      for (const std::int32_t fed : page) check_range("token", fed, 0, limits_.vocab_size - 1);
    }
  }
  origin = begin;
  position_ = position;
  if (token != kNothingPending) pending = token;
}

}  // namespace lintel
