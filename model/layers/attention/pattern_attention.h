// SPDX-License-Identifier: Apache-2.0
// PatternAttention: softmax attention over a pattern of positions. What the kinds
// `sparse_transformer`, `longformer` and `bigbird` are; they differ in their PositionPattern alone.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/member_kernels.h"

namespace lintel {

// PositionPattern: which positions a head attends to, and how long each of them is needed. Sparse
// Transformer, Longformer and BigBird are softmax attention and differ in nothing else.
//
// h, t and s are a head, the position that attends, and one that it sees. P_h(t) is the set of
// positions that head h sees from t; t itself is always in it.

// The time for which a position's key and value are needed, which decides where they are kept.
enum class Kept {
  kFirst,   // of the first num_first(): for ever, in memory that is there from the beginning
  kRecent,  // until num_recent() more have come, in a ring
  kRow      // for ever, in memory that grows by rows
};

// Positions of P_h(t): `count` runs of `length` consecutive ones, `period` >= length apart from
// beginning to beginning. All are kept alike; the rows of runs are consecutive within a run, and
// equally far apart from run to run.
struct PositionRuns {
  Kept kept = Kept::kRow;
  std::size_t first = 0;
  std::size_t length = 1;
  std::size_t period = 1;
  std::size_t count = 1;
};

// Const and shareable between threads. No function allocates.
class PositionPattern {
 public:
  virtual ~PositionPattern() = default;

  // P_h(t) in ascending order, cut into parts that do not overlap: the i-th of them. Empty after
  // the last.
  virtual std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const = 0;

  // Positions 0 .. num_first() - 1 are kept as kFirst, and of the others the last num_recent() as
  // kRecent.
  virtual std::size_t num_first() const { return 0; }
  virtual std::size_t num_recent() const { return 0; }
  // The first position that is kept as kRecent and that n or a later one may see, where n have been
  // fed.
  virtual std::size_t recent_from(std::size_t n) const { return n; }

  // Rows that n positions leave. They are made as a position is fed, of itself or of those that are
  // kept as kRecent until then.
  virtual std::size_t num_rows(std::size_t /*n*/) const { return 0; }
  virtual bool has_rows() const { return false; }  // num_rows() grows without end
  // The position whose key and value of head h a row holds, and the row of a position that has one.
  virtual std::size_t position_of(std::size_t /*h*/, std::size_t row) const { return row; }
  virtual std::size_t row_of(std::size_t /*h*/, std::size_t s) const { return s; }
};

// Consecutive positions first .. end - 1.
inline PositionRuns run_of(Kept kept, std::size_t first, std::size_t end) {
  return {.kept = kept, .first = first, .length = end - first, .period = end - first};
}

// No more positions are kept than can be fed. max_length: as of LayerDims.
inline std::size_t at_most(std::size_t positions, std::size_t max_length) {
  return max_length == 0 ? positions : std::min(positions, max_length);
}

// P_h(t) where it has three parts at most: what PositionPattern::part looks in.
class PatternParts {
 public:
  void add(const PositionRuns& runs) {
    if (runs.count > 0 && runs.length > 0) parts_[size_++] = runs;
  }
  std::optional<PositionRuns> part(std::size_t i) const {
    return i < size_ ? std::optional(parts_[i]) : std::nullopt;
  }

 private:
  std::array<PositionRuns, 3> parts_;
  std::size_t size_ = 0;
};

// PatternState: the keys and values that a PositionPattern still needs.

// A member is the key and value of one head at one position: [k D | v D].
struct MemberShape {
  std::size_t n_heads = 0;  // H
  std::size_t d_head = 0;   // D

  std::size_t member_floats() const { return 2 * d_head; }
  std::size_t position_floats() const { return n_heads * member_floats(); }
};

// Positions kept as kFirst and kRecent lie in the sequence's flat block, which the sequence zeroes:
// first the first positions, then a ring of the last ones. Rows lie in pages that never move.
class PatternState final : public LayerState {
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

  void assign(const LayerState& other) override {
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
  void begin_speculation(std::size_t num_rows, std::span<float> memory) override {
    assert(num_slots_ == 0 || memory.size() >= num_rows * shape_.position_floats());
    drafts_pending_ = num_rows;
    overwritten_ = memory.data();
  }

  void rollback(std::size_t num_rows) override {
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
    assert(drafts_pending_ <= num_rows);
    num_drafts_ = std::exchange(drafts_pending_, 0);
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
  // The slot in the block of a position that is kept there.
  std::size_t slot_of(std::size_t s) const {
    return s < num_first_ ? s : num_first_ + (s - num_first_) % num_recent_;
  }

  // The member of a position that a draft has overwritten.
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
  std::size_t drafts_pending_ = 0;  // drafts of the next run
  std::size_t num_drafts_ = 0;      // of the last run, until they are judged
  std::size_t first_draft_ = 0;     // position of the last run's first draft, or where it ended
  float* overwritten_ = nullptr;    // [drafts, H, k D | v D]
};

inline constexpr ConfigKey kPatternScale{.name = "scale",
                                         .type = ConfigKey::Type::kPositive,
                                         .doc = "of scores q.k",
                                         .high = 1e6,
                                         .initial = "null",
                                         .null_means = "1/sqrt(d_head)"};
inline constexpr double kMostPositions = 1 << 20;  // of a stride, a window, a block

// The members of one head, as they come, in blocks: the i-th that is seen is in block i /
// kMemberBlock, so that the order of sums is fixed by what is seen from a position.
class MemberBlocks {
 public:
  MemberBlocks(const float* q, std::size_t d_head, float* out)
      : sums_{.q = q, .d_head = d_head, .max = members_least(), .out = out} {}

  // `count` members one after the other.
  void operator()(const float* members, std::size_t count) {
    if (count == 1) prefetch(members);
    while (count > 0) {
      const std::size_t now = std::min(count, kMemberBlock - size_);
      for (std::size_t i = 0; i < now; ++i) {
        members_[size_ + i] = members;
        members += 2 * sums_.d_head;
      }
      count -= now;
      size_ += now;
      if (size_ == kMemberBlock) add();
    }
  }
  void finish() {
    if (size_ > 0) add();
    finish_members(sums_);
  }

 private:
  // One that lies alone: no hardware would guess where the next one is.
  void prefetch(const float* member) const {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    for (std::size_t i = 0; i < 2 * sums_.d_head; i += kFloatsPerLine) {
      __builtin_prefetch(member + i);
    }
  }

  void add() {
    add_members(sums_, {members_.data(), size_});
    size_ = 0;
  }

  MemberSums sums_;
  std::array<const float*, kMemberBlock> members_;
  std::size_t size_ = 0;
};

// out_h(t) = sum over s in P_h(t) of w_s v_s, w = softmax of scale * q_t . k_s over P_h(t).
class PatternAttention final : public AttentionBackend {
 public:
  PatternAttention(const AttentionParams& params, std::unique_ptr<PositionPattern> pattern)
      : pattern_(std::move(pattern)),
        shape_{.n_heads = static_cast<std::size_t>(params.dims.n_heads),
               .d_head = static_cast<std::size_t>(params.dims.d_head)},
        scale_(
            static_cast<float>(params.config.number("scale", 1.0 / std::sqrt(params.dims.d_head)))),
        max_length_(params.dims.max_length) {}

  std::size_t block_floats() const override {
    return PatternState::block_floats(shape_, *pattern_);
  }
  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    return std::make_unique<PatternState>(block, shape_, *pattern_, max_length_);
  }
  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return PatternState::most_bytes(shape_, *pattern_, num_tokens);
  }
  std::int64_t tokens_until_full() const override { return pattern_->has_rows() ? kNeverFull : 0; }
  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return block_floats() == 0 ? 0 : num_rows * shape_.position_floats();
  }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    for (std::size_t r = 0; r < states.size(); ++r) {
      auto& state = static_cast<PatternState&>(*states[r]);
      if (r == 0 || states[r] != states[r - 1]) state.begin_run(run_length(states.subspan(r)));
      state.append(k.row(r).data(), v.row(r).data());
      attend(state, q.row(r), out.row(r), scratch);
    }
  }

 private:
  // From the newest position of a state.
  void attend(const PatternState& state, std::span<const float> q, std::span<float> out,
              AttentionScratch& scratch) const {
    const std::size_t t = state.position() - 1;
    if (scratch.floats.size() < q.size()) scratch.floats.resize(q.size());
    float* const scaled = scratch.floats.data();
    std::ranges::transform(q, scaled, [this](float x) { return x * scale_; });
    std::ranges::fill(out, 0.0f);
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      const std::size_t column = h * shape_.d_head;
      MemberBlocks blocks(scaled + column, shape_.d_head, out.data() + column);
      for (std::size_t i = 0; const auto runs = pattern_->part(h, t, i); ++i) {
        state.visit_runs(h, *runs, blocks);
      }
      blocks.finish();
    }
  }

  const std::unique_ptr<PositionPattern> pattern_;
  const MemberShape shape_;
  const float scale_;
  const std::int64_t max_length_;
};

}  // namespace lintel
