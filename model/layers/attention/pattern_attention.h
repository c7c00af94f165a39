// PatternAttention: softmax attention over a pattern of positions. What the kinds
// `sparse_transformer`, `longformer` and `bigbird` are; they differ in their PositionPattern alone.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/member_kernels.h"
#include "model/layers/attention/pattern_state.h"
#include "model/layers/attention/position_pattern.h"

namespace lintel {

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
  std::unique_ptr<AttentionState> new_state(std::span<float> block) const override {
    return std::make_unique<PatternState>(block, shape_, *pattern_, max_length_);
  }
  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return PatternState::most_bytes(shape_, *pattern_, num_tokens);
  }
  std::int64_t tokens_until_full() const override { return pattern_->has_rows() ? kNeverFull : 0; }
  std::size_t take_back_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return block_floats() == 0 ? 0 : num_rows * shape_.position_floats();
  }

  void step(std::span<AttentionState* const> states, AttentionInputs inputs, MatrixView<float> out,
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
