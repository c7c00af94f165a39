// Linear attention (Katharopoulos et al. 2020): the state of a layer is S [H, D, M] and Z [H, D],
// whatever the length of the sequence.
#include <algorithm>
#include <cassert>

#include "model/attention/attention.h"
#include "model/kernels.h"

namespace lintel {
namespace {

// S, then Z, in the sequence's flat block. The block belongs to the sequence, which zeroes it.
class LinearState final : public AttentionState {
 public:
  LinearState(std::span<float> block, std::size_t s_floats) : block_(block), s_floats_(s_floats) {}

  std::size_t bytes() const override { return block_.size_bytes(); }

  void assign(const AttentionState& other) override {
    const std::span<float> from = static_cast<const LinearState&>(other).block_;
    assert(from.size() == block_.size());
    std::copy(from.begin(), from.end(), block_.begin());
  }

  void reset() override { std::fill(block_.begin(), block_.end(), 0.0f); }

  float* s() { return block_.data(); }
  float* z() { return block_.data() + s_floats_; }

 private:
  std::span<float> block_;
  std::size_t s_floats_;
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
    return std::make_unique<LinearState>(block, s_floats_);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }

  bool constant_state() const override { return true; }

  void step(std::span<AttentionState* const> states, MatrixView<const float> q,
            MatrixView<const float> k, MatrixView<const float> v, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const std::size_t width = z_floats_;  // H*D
    if (scratch.floats.size() < 2 * width) scratch.floats.resize(2 * width);
    const std::span<float> phi_q(scratch.floats.data(), width);
    const std::span<float> phi_k(scratch.floats.data() + width, width);
    for (std::size_t r = 0; r < states.size(); ++r) {
      auto& state = static_cast<LinearState&>(*states[r]);
      elu_plus_one(q.row(r), phi_q);
      elu_plus_one(k.row(r), phi_k);
      linear_attention_step(shape_, phi_q.data(), phi_k.data(), v.row(r).data(), state.s(),
                            state.z(), out.row(r).data());
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
