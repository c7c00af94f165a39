// PatternState: the keys and values that a PositionPattern still needs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/attention/attention.h"
#include "model/attention/parts/history.h"
#include "model/attention/position_pattern.h"

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
               std::int64_t max_length);

  static std::size_t block_floats(const MemberShape& shape, const PositionPattern& pattern);
  // Upper bound of bytes(): what AttentionBackend::state_bytes says.
  static std::size_t most_bytes(const MemberShape& shape, const PositionPattern& pattern,
                                std::int64_t num_tokens);

  std::size_t bytes() const override { return block_.size_bytes() + rows_.bytes(); }
  void assign(const AttentionState& other) override;
  void reset() override;
  // The memory holds what each draft takes the place of in the block, position_floats() a draft.
  void announce(std::size_t num_rows, std::span<float> memory) override;
  void take_back(std::size_t num_rows) override;
  void save(std::int64_t since, StateWriter& writer) const override;
  void load(StateReader& reader) override;

  // A run of num_rows tokens is about to be fed.
  void begin_run(std::size_t num_rows);
  // Feeds one token: its k and v, [H*D] each.
  void append(const float* k, const float* v);

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
  void append_rows(const float* k, const float* v);
  // Calls visit(members) for what the block holds of positions first .. end - 1.
  template <typename Visit>
  void visit_members(std::size_t first, std::size_t end, Visit&& visit) const;

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
  std::size_t first_draft_ = 0;   // position of the last run's first draft, or where it ended
  float* overwritten_ = nullptr;  // [drafts, H, k D | v D]
};

}  // namespace lintel
