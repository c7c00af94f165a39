// Linear attention (Katharopoulos et al. 2020): the state of a layer is S [H, D, M] and Z [H, D],
// whatever the length of the sequence.
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <utility>

#include "model/attention/attention.h"
#include "model/simd/kernels.h"

namespace lintel {
namespace {

// S, then Z, in the sequence's flat block. The block belongs to the sequence, which zeroes it.
//
// A row cannot be subtracted from the sums bit for bit. So S and Z are copied before the first
// draft, with phi(k) and v of each: to rewind is to restore the copy and add again what stays, in
// the same order. One copy a step costs less than one a row.
class LinearState final : public AttentionState {
 public:
  LinearState(std::span<float> block, const LinearAttentionShape& shape)
      : block_(block),
        shape_(shape),
        width_(shape.n_heads * shape.d_head),
        s_floats_(width_ * shape.d_head) {}

  std::size_t bytes() const override { return block_.size_bytes(); }

  std::span<const float> read_next() const override { return block_; }

  void assign(const AttentionState& other) override {
    const auto& from = static_cast<const LinearState&>(other);
    assert(from.block_.size() == block_.size());
    std::ranges::copy(from.block_, block_.begin());
    position_ = from.position_;
  }

  void reset() override {
    std::ranges::fill(block_, 0.0f);
    position_ = 0;
  }

  // Floats of expect_drafts: the copy of the block, phi(k) and v of each draft, and a row nobody
  // reads.
  static std::size_t rewind_floats(const LinearAttentionShape& shape, std::size_t num_rows) {
    const std::size_t width = shape.n_heads * shape.d_head;
    return width * (shape.d_head + 1) + (2 * num_rows + 1) * width;
  }

  void expect_drafts(std::size_t num_rows, std::span<float> memory) override {
    assert(memory.size() >= rewind_floats(shape_, num_rows));
    expected_ = num_rows;
    memory_ = memory.data();
  }

  void rewind(std::size_t num_rows) override {
    assert(num_rows <= kept_);
    std::copy_n(memory_, block_.size(), block_.begin());
    position_ -= static_cast<std::int64_t>(kept_);
    kept_ -= num_rows;
    for (std::size_t i = 0; i < kept_; ++i) {
      const float* const phi_k = kept_row(i);
      feed(/*phi_q=*/phi_k, phi_k, phi_k + width_, /*out=*/memory_ + block_.size());
    }
    kept_ = 0;
  }

  // A run of num_rows rows is about to be fed. Returns how many come before the first draft.
  std::size_t begin_run(std::size_t num_rows) {
    assert(expected_ <= num_rows);
    kept_ = 0;
    return num_rows - std::exchange(expected_, 0);
  }
  // Before a draft is fed, in order.
  void keep(const float* phi_k, const float* v) {
    if (kept_ == 0) std::copy(block_.begin(), block_.end(), memory_);
    std::copy_n(phi_k, width_, kept_row(kept_));
    std::copy_n(v, width_, kept_row(kept_) + width_);
    ++kept_;
  }

  // One token.
  void feed(const float* phi_q, const float* phi_k, const float* v, float* out) {
    linear_attention_step(shape_, position_++, phi_q, phi_k, v, /*s=*/block_.data(),
                          /*z=*/block_.data() + s_floats_, out);
  }

 private:
  // phi(k), then v, of a draft.
  float* kept_row(std::size_t i) { return memory_ + block_.size() + (2 * i + 1) * width_; }

  const std::span<float> block_;
  const LinearAttentionShape& shape_;  // the backend's
  const std::size_t width_;            // H*D
  const std::size_t s_floats_;
  std::int64_t position_ = 0;  // tokens fed

  // Valid from one step to the next.
  std::size_t expected_ = 0;  // drafts of the next run
  std::size_t kept_ = 0;      // drafts of the last run
  float* memory_ = nullptr;
};

class LinearAttention final : public AttentionBackend {
 public:
  explicit LinearAttention(const AttentionParams& params)
      : shape_{.n_heads = static_cast<std::size_t>(params.n_heads),
               .d_head = static_cast<std::size_t>(params.d_head),
               .eps = static_cast<float>(params.config.eps)},
        s_floats_(shape_.n_heads * shape_.d_head * shape_.d_head),
        z_floats_(shape_.n_heads * shape_.d_head) {}

  std::size_t block_floats() const override { return s_floats_ + z_floats_; }

  std::unique_ptr<AttentionState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<LinearState>(block, shape_);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }

  bool constant_state() const override { return true; }

  std::size_t rewind_floats(std::size_t num_rows) const override {
    return LinearState::rewind_floats(shape_, num_rows);
  }

  void step(std::span<AttentionState* const> states, MatrixView<const float> q,
            MatrixView<const float> k, MatrixView<const float> v, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const std::size_t width = z_floats_;  // H*D
    if (scratch.floats.size() < 2 * width) scratch.floats.resize(2 * width);
    const std::span<float> phi_q(scratch.floats.data(), width);
    const std::span<float> phi_k(scratch.floats.data() + width, width);
    for (std::size_t begin = 0; begin < states.size();) {
      std::size_t end = begin + 1;
      while (end < states.size() && states[end] == states[begin]) ++end;
      auto& state = static_cast<LinearState&>(*states[begin]);
      const std::size_t first_draft = begin + state.begin_run(end - begin);
      for (std::size_t r = begin; r < end; ++r) {
        elu_plus_one(q.row(r), phi_q);
        elu_plus_one(k.row(r), phi_k);
        if (r >= first_draft) state.keep(phi_k.data(), v.row(r).data());
        state.feed(phi_q.data(), phi_k.data(), v.row(r).data(), out.row(r).data());
      }
      begin = end;
    }
  }

 private:
  const LinearAttentionShape shape_;
  const std::size_t s_floats_;
  const std::size_t z_floats_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_linear_attention(const AttentionParams& params) {
  return std::make_unique<LinearAttention>(params);
}

}  // namespace lintel
