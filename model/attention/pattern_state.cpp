#include "model/attention/pattern_state.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

namespace lintel {

PatternState::PatternState(std::span<float> block, const MemberShape& shape,
                           const PositionPattern& pattern, std::int64_t max_length)
    : block_(block),
      shape_(shape),
      pattern_(pattern),
      max_length_(max_length == 0 ? SIZE_MAX : static_cast<std::size_t>(max_length)),
      num_first_(pattern.num_first()),
      num_recent_(pattern.num_recent()),
      num_slots_(num_first_ + num_recent_),
      rows_(History::kPage * shape.position_floats()) {
  assert(block.size() == block_floats(shape, pattern));
}

std::size_t PatternState::block_floats(const MemberShape& shape, const PositionPattern& pattern) {
  return (pattern.num_first() + pattern.num_recent()) * shape.position_floats();
}

std::size_t PatternState::most_bytes(const MemberShape& shape, const PositionPattern& pattern,
                                     std::int64_t num_tokens) {
  const std::size_t rows = pattern.num_rows(static_cast<std::size_t>(num_tokens));
  const std::size_t in_pages =
      History::bytes_of(static_cast<std::int64_t>(rows), History::kPage * shape.position_floats());
  const std::size_t in_block = block_floats(shape, pattern) * sizeof(float);
  return in_pages > SIZE_MAX - in_block ? SIZE_MAX : in_pages + in_block;
}

void PatternState::assign(const AttentionState& other) {
  const auto& from = static_cast<const PatternState&>(other);
  assert(from.block_.size() == block_.size());
  std::ranges::copy(from.block_, block_.begin());
  rows_.assign(from.rows_);
  position_ = from.position_;
}

void PatternState::reset() {
  std::ranges::fill(block_, 0.0f);
  rows_.clear();
  position_ = 0;
}

void PatternState::announce(std::size_t num_rows, std::span<float> memory) {
  assert(num_slots_ == 0 || memory.size() >= num_rows * shape_.position_floats());
  announced_ = num_rows;
  overwritten_ = memory.data();
}

void PatternState::begin_run(std::size_t num_rows) {
  assert(announced_ <= num_rows);
  first_draft_ = position_ + num_rows - std::exchange(announced_, 0);
}

void PatternState::append(const float* k, const float* v) {
  append_rows(k, v);
  const std::size_t t = position_++;
  if (num_slots_ == 0) return;
  const std::size_t slot = slot_of(t);
  const std::size_t d_head = shape_.d_head;
  for (std::size_t h = 0; h < shape_.n_heads; ++h) {
    float* const place = member(h, slot);
    if (t >= first_draft_) {
      std::copy_n(place, 2 * d_head,
                  overwritten_ + ((t - first_draft_) * shape_.n_heads + h) * 2 * d_head);
    }
    std::copy_n(k + h * d_head, d_head, place);
    std::copy_n(v + h * d_head, d_head, place + d_head);
  }
}

// Before the block takes the token: the rows may be of the position that it takes the place of.
void PatternState::append_rows(const float* k, const float* v) {
  const std::size_t d_head = shape_.d_head;
  for (const std::size_t end = pattern_.num_rows(position_ + 1); rows_.length() < end;) {
    const std::size_t row = rows_.append();
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      float* const place = in_row(h, row);
      const std::size_t s = pattern_.position_of(h, row);
      if (s < position_) {
        std::copy_n(member(h, slot_of(s)), 2 * d_head, place);
      } else {
        std::copy_n(k + h * d_head, d_head, place);
        std::copy_n(v + h * d_head, d_head, place + d_head);
      }
    }
  }
}

void PatternState::take_back(std::size_t num_rows) {
  for (; num_rows > 0; --num_rows) {
    assert(position_ > first_draft_);
    --position_;
    for (std::size_t h = 0; num_slots_ > 0 && h < shape_.n_heads; ++h) {
      const std::size_t at = (position_ - first_draft_) * shape_.n_heads + h;
      std::copy_n(overwritten_ + at * shape_.member_floats(), shape_.member_floats(),
                  member(h, slot_of(position_)));
    }
  }
  while (rows_.length() > pattern_.num_rows(position_)) {
    const std::size_t row = rows_.remove_last();
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      std::fill_n(in_row(h, row), shape_.member_floats(), 0.0f);
    }
  }
  rows_.shrink();
}

template <typename Visit>
void PatternState::visit_members(std::size_t first, std::size_t end, Visit&& visit) const {
  while (first < end) {
    const std::size_t slot = slot_of(first);
    const std::size_t border = slot < num_first_ ? num_first_ : num_slots_;
    const std::size_t count = std::min(end - first, border - slot);
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      visit(block_.subspan(in_block(h, slot), count * shape_.member_floats()));
    }
    first += count;
  }
}

// The counts, what the block holds of positions from `since` on that are still needed, the rows.
void PatternState::save(std::int64_t since, StateWriter& writer) const {
  const auto from = static_cast<std::size_t>(since);
  assert(from <= position_);
  writer.value<std::uint64_t>(from);
  writer.value<std::uint64_t>(position_);
  const auto write = [&](std::span<const float> members) { writer.values(members); };
  visit_members(from, std::min(position_, num_first_), write);
  visit_members(std::max(from, pattern_.recent_from(position_)), position_, write);
  rows_.save(pattern_.num_rows(from), writer);
}

void PatternState::load(StateReader& reader) {
  const auto since = reader.value<std::uint64_t>();
  const auto position = reader.value<std::uint64_t>();
  if (since != position_ || position < since ||
      position > std::min<std::size_t>(max_length_, INT64_MAX)) {
    throw ModelError("saved state: found positions " + std::to_string(since) + " to " +
                     std::to_string(position) + ", expected them from " +
                     std::to_string(position_) + " on");
  }
  const auto read = [&](std::span<const float> members) {
    reader.values(
        block_.subspan(static_cast<std::size_t>(members.data() - block_.data()), members.size()));
  };
  visit_members(since, std::min(position, num_first_), read);
  visit_members(std::max(since, pattern_.recent_from(position)), position, read);
  rows_.load(reader);
  if (rows_.length() != pattern_.num_rows(position)) {
    throw ModelError("saved state: found " + std::to_string(rows_.length()) + " rows, expected " +
                     std::to_string(pattern_.num_rows(position)));
  }
  position_ = position;
}

}  // namespace lintel
