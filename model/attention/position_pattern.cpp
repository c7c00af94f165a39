#include "model/attention/position_pattern.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>
#include <vector>

namespace lintel {
namespace {

// Consecutive positions first .. end - 1.
PositionRuns run_of(Kept kept, std::size_t first, std::size_t end) {
  return {.kept = kept, .first = first, .length = end - first, .period = end - first};
}

// No more positions are kept than can be fed.
std::size_t at_most(std::size_t positions, std::size_t max_length) {
  return max_length == 0 ? positions : std::min(positions, max_length);
}

// The few parts of most patterns.
class Parts {
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

// Old positions are seen again and again: a row for each of them. Without far heads, the last
// `stride` will do.
class StridedPattern final : public PositionPattern {
 public:
  StridedPattern(std::size_t n_heads, SparseParts parts, std::size_t stride, std::size_t max_length)
      : parts_(parts),
        stride_(stride),
        has_rows_(parts.any_far(n_heads)),
        num_recent_(has_rows_ ? 0 : at_most(stride, max_length)) {}

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    Parts seen;
    const std::size_t strides = t / stride_;
    if (parts_.is_far(h)) {
      // t itself is one of the local ones.
      const std::size_t count = parts_.is_local(h) ? strides : strides + 1;
      seen.add({.first = t % stride_, .period = stride_, .count = count});
    }
    if (parts_.is_local(h)) {
      const Kept kept = has_rows_ ? Kept::kRow : Kept::kRecent;
      seen.add(run_of(kept, t + 1 - std::min(t + 1, stride_), t + 1));
    }
    return seen.part(i);
  }

  std::size_t num_recent() const override { return num_recent_; }
  std::size_t recent_from(std::size_t n) const override { return n - std::min(n, num_recent_); }
  std::size_t num_rows(std::size_t n) const override { return has_rows_ ? n : 0; }
  bool has_rows() const override { return has_rows_; }

 private:
  const SparseParts parts_;
  const std::size_t stride_;
  const bool has_rows_;
  const std::size_t num_recent_;
};

// A block's columns become rows when the next block begins; until then all of it is there.
class FixedPattern final : public PositionPattern {
 public:
  FixedPattern(std::size_t n_heads, SparseParts parts, std::size_t stride, std::size_t columns,
               std::size_t column_groups, std::size_t max_length)
      : parts_(parts),
        stride_(stride),
        columns_(columns),
        column_groups_(column_groups),
        has_rows_(parts.any_far(n_heads)),
        num_recent_(at_most(stride, max_length)) {}

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    Parts seen;
    const std::size_t block = t / stride_ * stride_;
    if (parts_.is_far(h)) {
      seen.add(
          {.first = first_column(h), .length = columns_, .period = stride_, .count = t / stride_});
    }
    if (parts_.is_local(h)) {
      seen.add(run_of(Kept::kRecent, block, t + 1));
    } else {
      // The own block's columns, and t itself.
      const std::size_t column = std::min(block + first_column(h), t);
      const std::size_t end = std::min(block + first_column(h) + columns_, t);
      seen.add(run_of(Kept::kRecent, column, end));
      seen.add(run_of(Kept::kRecent, t, t + 1));
    }
    return seen.part(i);
  }

  std::size_t num_recent() const override { return num_recent_; }
  std::size_t recent_from(std::size_t n) const override {
    return n == 0 ? 0 : (n - 1) / stride_ * stride_;
  }
  std::size_t num_rows(std::size_t n) const override {
    return n == 0 || !has_rows_ ? 0 : (n - 1) / stride_ * columns_;
  }
  bool has_rows() const override { return has_rows_; }
  std::size_t position_of(std::size_t h, std::size_t row) const override {
    return row / columns_ * stride_ + first_column(h) + row % columns_;
  }
  std::size_t row_of(std::size_t h, std::size_t s) const override {
    return s / stride_ * columns_ + s % stride_ - first_column(h);
  }

 private:
  // Of a block.
  std::size_t first_column(std::size_t h) const {
    return stride_ - (h % column_groups_ + 1) * columns_;
  }

  const SparseParts parts_;
  const std::size_t stride_;
  const std::size_t columns_;
  const std::size_t column_groups_;
  const bool has_rows_;
  const std::size_t num_recent_;
};

class LongformerPattern final : public PositionPattern {
 public:
  LongformerPattern(std::size_t window, std::span<const std::int64_t> dilations,
                    std::size_t global_tokens, std::size_t max_length)
      : window_(window), num_first_(at_most(global_tokens, max_length)) {
    for (const std::int64_t d : dilations) dilations_.push_back(static_cast<std::size_t>(d));
    const std::size_t span = (window - 1) * std::ranges::max(dilations_) + 1;
    num_recent_ = max_length == 0 ? span : std::min(span, max_length - num_first_);
  }

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    Parts seen;
    seen.add(run_of(Kept::kFirst, 0, std::min(num_first_, t + 1)));
    if (t >= num_first_) {
      const std::size_t d = dilations_[h % dilations_.size()];
      const std::size_t count = std::min(window_, (t - num_first_) / d + 1);
      const std::size_t first = t - (count - 1) * d;
      if (d == 1) {
        seen.add(run_of(Kept::kRecent, first, t + 1));
      } else {
        seen.add({.kept = Kept::kRecent, .first = first, .period = d, .count = count});
      }
    }
    return seen.part(i);
  }

  std::size_t num_first() const override { return num_first_; }
  std::size_t num_recent() const override { return num_recent_; }
  std::size_t recent_from(std::size_t n) const override {
    return std::max(n - std::min(n, num_recent_), std::min(n, num_first_));
  }

 private:
  const std::size_t window_;
  std::vector<std::size_t> dilations_;  // one for all heads, or one a head
  const std::size_t num_first_;
  std::size_t num_recent_ = 0;
};

class BigBirdPattern final : public PositionPattern {
 public:
  BigBirdPattern(std::size_t n_heads, const BlockPattern& blocks,
                 std::span<const float> random_blocks, std::size_t random)
      : blocks_(blocks) {
    if (random == 0) return;
    num_blocks_ = random_blocks.size() / n_heads / random;
    ends_.reserve(n_heads * num_blocks_ + 1);
    ends_.push_back(0);
    for (std::size_t row = 0; row < n_heads * num_blocks_; ++row) {
      add_random(row % num_blocks_, random_blocks.subspan(row * random, random));
    }
    random_.shrink_to_fit();
  }

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    const std::size_t own = t / blocks_.block_size;
    if (own < blocks_.global_blocks) {
      return i == 0 ? std::optional(run_of(Kept::kRow, 0, t + 1)) : std::nullopt;
    }
    if (blocks_.global_blocks > 0 && i-- == 0) {
      return run_of(Kept::kRow, 0, blocks_.global_blocks * blocks_.block_size);
    }
    if (num_blocks_ > 0) {
      assert(own < num_blocks_);
      const std::size_t at = h * num_blocks_ + own;
      const std::size_t count = ends_[at + 1] - ends_[at];
      if (i < count) {
        const auto first = static_cast<std::size_t>(random_[ends_[at] + i]) * blocks_.block_size;
        return run_of(Kept::kRow, first, first + blocks_.block_size);
      }
      i -= count;
    }
    if (i > 0) return std::nullopt;
    return run_of(Kept::kRow, first_of_window(own) * blocks_.block_size, t + 1);
  }

  std::size_t num_rows(std::size_t n) const override { return n; }
  bool has_rows() const override { return true; }

 private:
  // The first block that is seen as one of the window and not as a global one.
  std::size_t first_of_window(std::size_t own) const {
    return std::max(own + 1 - std::min(own + 1, blocks_.window_blocks), blocks_.global_blocks);
  }

  // Of the blocks that a row names, those that it does not see anyhow, each once, in order.
  void add_random(std::size_t own, std::span<const float> named) {
    const auto begin = static_cast<std::ptrdiff_t>(random_.size());
    for (const float block : named) {
      if (block < static_cast<float>(blocks_.global_blocks) || own < blocks_.global_blocks)
        continue;
      if (static_cast<std::size_t>(block) >= first_of_window(own)) continue;
      random_.push_back(static_cast<std::int32_t>(block));
    }
    std::sort(random_.begin() + begin, random_.end());
    random_.erase(std::unique(random_.begin() + begin, random_.end()), random_.end());
    ends_.push_back(random_.size());
  }

  const BlockPattern blocks_;
  std::size_t num_blocks_ = 0;        // of a sequence of max_length; 0: nothing is random
  std::vector<std::int32_t> random_;  // of each [H, blocks]
  std::vector<std::size_t> ends_;     // [H * blocks + 1] into random_, the first 0
};

}  // namespace

std::unique_ptr<PositionPattern> strided_pattern(std::size_t n_heads, SparseParts parts,
                                                 std::size_t stride, std::size_t max_length) {
  return std::make_unique<StridedPattern>(n_heads, parts, stride, max_length);
}

std::unique_ptr<PositionPattern> fixed_pattern(std::size_t n_heads, SparseParts parts,
                                               std::size_t stride, std::size_t columns,
                                               std::size_t column_groups, std::size_t max_length) {
  return std::make_unique<FixedPattern>(n_heads, parts, stride, columns, column_groups, max_length);
}

std::unique_ptr<PositionPattern> longformer_pattern(std::size_t window,
                                                    std::span<const std::int64_t> dilations,
                                                    std::size_t global_tokens,
                                                    std::size_t max_length) {
  return std::make_unique<LongformerPattern>(window, dilations, global_tokens, max_length);
}

std::unique_ptr<PositionPattern> bigbird_pattern(std::size_t n_heads, const BlockPattern& blocks,
                                                 std::span<const float> random_blocks,
                                                 std::size_t random) {
  return std::make_unique<BigBirdPattern>(n_heads, blocks, random_blocks, random);
}

}  // namespace lintel
