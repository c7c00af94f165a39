// PatternState: the keys and values that a PositionPattern still needs.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/saved_state.h"
#include "model/layers/attention/position_pattern.h"

namespace lintel {

// A member is the key and value of one head at one position: [k D | v D].
struct MemberShape {
  std::size_t n_heads = 0;  // H
  std::size_t d_head = 0;   // D

  std::size_t member_floats() const { return 2 * d_head; }
  std::size_t position_floats() const { return n_heads * member_floats(); }
};

// What is kept as kFirst and kRecent lies in the sequence's flat block, which the sequence zeroes:
// first the first positions, then a ring of the last ones. Rows lie in pages that never move.
class PatternState final : public AttentionState {
 public:
  // block: block_floats(). max_length: as of LayerDims. shape and pattern are the backend's.
  PatternState(std::span<float> block, const MemberShape& shape, const PositionPattern& pattern,
               std::int64_t max_length)
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

  static std::size_t block_floats(const MemberShape& shape, const PositionPattern& pattern) {
    return (pattern.num_first() + pattern.num_recent()) * shape.position_floats();
  }
  // Upper bound of bytes(): what AttentionBackend::state_bytes says.
  static std::size_t most_bytes(const MemberShape& shape, const PositionPattern& pattern,
                                std::int64_t num_tokens) {
    const std::size_t rows = pattern.num_rows(static_cast<std::size_t>(num_tokens));
    const std::size_t in_pages = History::bytes_of(static_cast<std::int64_t>(rows),
                                                   History::kPage * shape.position_floats());
    const std::size_t in_block = block_floats(shape, pattern) * sizeof(float);
    return in_pages > SIZE_MAX - in_block ? SIZE_MAX : in_pages + in_block;
  }

  std::size_t bytes() const override { return block_.size_bytes() + rows_.bytes(); }

  void assign(const AttentionState& other) override {
    const auto& from = static_cast<const PatternState&>(other);
    assert(from.block_.size() == block_.size());
    std::ranges::copy(from.block_, block_.begin());
    rows_.assign(from.rows_);
    position_ = from.position_;
  }

  void reset() override {
    std::ranges::fill(block_, 0.0f);
    rows_.clear();
    position_ = 0;
  }

  // The memory holds what each draft takes the place of in the block, position_floats() a draft.
  void announce(std::size_t num_rows, std::span<float> memory) override {
    assert(num_slots_ == 0 || memory.size() >= num_rows * shape_.position_floats());
    announced_ = num_rows;
    overwritten_ = memory.data();
  }

  void take_back(std::size_t num_rows) override {
    assert(position_ >= first_draft_ + num_rows);
    for (const std::size_t end = position_ - num_rows; position_ > end;) {
      --position_;
      if (num_slots_ == 0) continue;
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        std::copy_n(overwritten(position_, h), shape_.member_floats(),
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
    const std::size_t drafts = std::exchange(num_drafts_, 0);
    if (num_slots_ > 0) zero_memory(std::span(overwritten_, drafts * shape_.position_floats()));
  }

  // The counts, what the block holds of positions from `since` on that are still needed, the rows.
  void save(std::int64_t since, StateWriter& writer) const override {
    const auto from = static_cast<std::size_t>(since);
    assert(from <= position_);
    writer.value<std::uint64_t>(from);
    writer.value<std::uint64_t>(position_);
    const auto write = [&](std::span<const float> members) { writer.values(members); };
    visit_members(from, std::min(position_, num_first_), write);
    visit_members(std::max(from, pattern_.recent_from(position_)), position_, write);
    rows_.save(pattern_.num_rows(from), writer);
  }

  void load(std::int64_t position, StateReader& reader) override {
    const auto since = reader.value<std::uint64_t>();
    const auto end = static_cast<std::size_t>(position);
    check_saved("position", reader.value<std::uint64_t>(), end);
    if (since != position_ || end < since || end > std::min<std::size_t>(max_length_, INT64_MAX)) {
      throw ModelError("saved state: found positions " + std::to_string(since) + " to " +
                       std::to_string(end) + ", expected them from " + std::to_string(position_) +
                       " on");
    }
    const auto read = [&](std::span<float> members) { read_finite(reader, members); };
    visit_members(since, std::min(end, num_first_), read);
    visit_members(std::max<std::size_t>(since, pattern_.recent_from(end)), end, read);
    rows_.load(pattern_.num_rows(end), reader);
    position_ = end;
  }

  // A run of num_rows tokens is about to be fed.
  void begin_run(std::size_t num_rows) {
    assert(announced_ <= num_rows);
    num_drafts_ = std::exchange(announced_, 0);
    first_draft_ = position_ + num_rows - num_drafts_;
  }

  // Feeds one token: its k and v, [H*D] each.
  void append(const float* k, const float* v) {
    append_rows(k, v);
    const std::size_t t = position_++;
    if (num_slots_ == 0) return;
    const std::size_t slot = slot_of(t);
    const std::size_t d_head = shape_.d_head;
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      float* const place = member(h, slot);
      if (t >= first_draft_) std::copy_n(place, shape_.member_floats(), overwritten(t, h));
      std::copy_n(k + h * d_head, d_head, place);
      std::copy_n(v + h * d_head, d_head, place + d_head);
    }
  }

  std::size_t position() const { return position_; }  // tokens fed

  // Calls visit(members, count) for members of head h that lie one after the other, until it has
  // had those of all positions of the runs, in their order.
  template <typename Visit>
  void visit_runs(std::size_t h, const PositionRuns& runs, Visit&& visit) const {
    if (runs.kept == Kept::kRow) {
      visit_rows(h, runs, visit);
    } else {
      visit_slots(h, runs, visit);
    }
  }

 private:
  std::size_t in_block(std::size_t h, std::size_t slot) const {
    return (h * num_slots_ + slot) * shape_.member_floats();
  }
  const float* in_row(std::size_t h, std::size_t row) const {
    return rows_.page_of(row) + in_page(h, row);
  }
  float* in_row(std::size_t h, std::size_t row) { return rows_.page_of(row) + in_page(h, row); }
  std::size_t in_page(std::size_t h, std::size_t row) const {
    return (h * History::kPage + History::slot_of(row)) * shape_.member_floats();
  }
  float* member(std::size_t h, std::size_t slot) { return block_.data() + in_block(h, slot); }
  // Where a position that is kept in the block lies in it.
  std::size_t slot_of(std::size_t s) const {
    return s < num_first_ ? s : num_first_ + (s - num_first_) % num_recent_;
  }

  // What a draft took the place of.
  float* overwritten(std::size_t position, std::size_t h) {
    return overwritten_ + ((position - first_draft_) * shape_.n_heads + h) * shape_.member_floats();
  }

  template <typename Visit>
  void visit_rows(std::size_t h, const PositionRuns& runs, Visit& visit) const {
    std::size_t row = pattern_.row_of(h, runs.first);
    const std::size_t next =
        runs.count == 1 ? 0 : pattern_.row_of(h, runs.first + runs.period) - row;
    for (std::size_t i = 0; i < runs.count; ++i, row += next) {
      for (std::size_t at = row, end = row + runs.length; at < end;) {
        const std::size_t count = std::min(end - at, History::kPage - History::slot_of(at));
        visit(in_row(h, at), count);
        at += count;
      }
    }
  }
  template <typename Visit>
  void visit_slots(std::size_t h, const PositionRuns& runs, Visit& visit) const {
    std::size_t slot = slot_of(runs.first);
    for (std::size_t i = 0; i < runs.count; ++i) {
      const std::size_t count = std::min(runs.length, num_slots_ - slot);
      visit(block_.data() + in_block(h, slot), count);
      // The ring's end is followed by its beginning.
      if (count < runs.length) {
        visit(block_.data() + in_block(h, num_first_), runs.length - count);
      }
      slot += runs.period;
      if (slot >= num_slots_) slot -= num_recent_;
    }
  }

  // Before the block takes the token: the rows may be of the position that it takes the place of.
  void append_rows(const float* k, const float* v) {
    const std::size_t d_head = shape_.d_head;
    for (const std::size_t end = pattern_.num_rows(position_ + 1); rows_.length() < end;) {
      const std::size_t row = rows_.append();
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        float* const place = in_row(h, row);
        const std::size_t s = pattern_.position_of(h, row);
        if (s < position_) {
          std::copy_n(member(h, slot_of(s)), shape_.member_floats(), place);
        } else {
          std::copy_n(k + h * d_head, d_head, place);
          std::copy_n(v + h * d_head, d_head, place + d_head);
        }
      }
    }
  }

  // Calls visit(members) for what the block holds of positions first .. end - 1.
  template <typename Visit>
  void visit_members(std::size_t first, std::size_t end, Visit&& visit) const {
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

  const std::span<float> block_;  // [H, slots, k D | v D]
  const MemberShape& shape_;
  const PositionPattern& pattern_;
  const std::size_t max_length_;  // SIZE_MAX: unbounded
  const std::size_t num_first_;
  const std::size_t num_recent_;
  const std::size_t num_slots_;
  History rows_;  // a page: [H, History::kPage, k D | v D]
  std::size_t position_ = 0;

  // Valid from one step to the next.
  std::size_t announced_ = 0;     // drafts of the next run
  std::size_t num_drafts_ = 0;    // of the last run, until they are judged
  std::size_t first_draft_ = 0;   // position of the last run's first draft, or where it ended
  float* overwritten_ = nullptr;  // [drafts, H, k D | v D]
};

}  // namespace lintel
