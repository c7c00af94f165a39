// Linear attention (Katharopoulos et al. 2020): the state of a layer is S [H, D, M] and Z [H, D],
// whatever the length of the sequence.
#include <algorithm>
#include <cassert>
#include <cstdint>

#include "model/attention/attention.h"
#include "model/attention/parts/sum_kernels.h"
#include "model/attention/sum_state.h"

namespace lintel {
namespace {

constexpr ConfigKey kKeys[] = {
    {.name = "feature_map",
     .type = ConfigKey::Type::kChoice,
     .doc = "phi, what queries and keys go through",
     .initial = "\"elu_plus_one\"",
     .choices = {"elu_plus_one"}},
    {.name = "eps",
     .type = ConfigKey::Type::kPositive,
     .doc = "added to the denominator",
     .high = 1.0,
     .initial = "1e-6"},
};
constexpr const char* kSamples[] = {"", "eps=0.01"};

// S, then Z. Of a draft phi(k) and v are kept, and a row of output that nobody reads.
class LinearState final : public SumState {
 public:
  LinearState(std::span<float> block, const LinearAttentionShape& shape)
      : SumState(block, kept_floats(shape)),
        shape_(shape),
        width_(shape.n_heads * shape.d_head),
        s_floats_(width_ * shape.d_head) {}

  static std::size_t kept_floats(const LinearAttentionShape& shape) {
    return 3 * shape.n_heads * shape.d_head;
  }

  void keep_draft(const float* phi_k, const float* v) {
    float* const kept = keep();
    std::copy_n(phi_k, width_, kept);
    std::copy_n(v, width_, kept + width_);
  }

  // One token.
  void feed(const float* phi_q, const float* phi_k, const float* v, float* out) {
    float* const s = block().data();
    linear_attention_step(shape_, next_position(), phi_q, phi_k, v, s, /*z=*/s + s_floats_, out);
  }

 private:
  void feed_again(float* kept) override {
    feed(/*phi_q=*/kept, /*phi_k=*/kept, /*v=*/kept + width_, /*out=*/kept + 2 * width_);
  }

  const LinearAttentionShape& shape_;  // the backend's
  const std::size_t width_;            // H*D
  const std::size_t s_floats_;
};

class LinearAttention final : public AttentionBackend {
 public:
  explicit LinearAttention(const AttentionParams& params)
      : shape_{.n_heads = static_cast<std::size_t>(params.dims.n_heads),
               .d_head = static_cast<std::size_t>(params.dims.d_head),
               .eps = static_cast<float>(params.config.number("eps"))},
        width_(shape_.n_heads * shape_.d_head) {}

  std::size_t block_floats() const override { return width_ * (shape_.d_head + 1); }

  std::unique_ptr<AttentionState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<LinearState>(block, shape_);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }

  std::size_t take_back_floats(std::size_t num_rows) const override {
    return SumState::take_back_floats(block_floats(), LinearState::kept_floats(shape_), num_rows);
  }

  void step(std::span<AttentionState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    if (scratch.floats.size() < 2 * width_) scratch.floats.resize(2 * width_);
    const std::span<float> phi_q(scratch.floats.data(), width_);
    const std::span<float> phi_k(scratch.floats.data() + width_, width_);
    for (std::size_t begin = 0; begin < states.size();) {
      const std::size_t end = begin + run_length(states.subspan(begin));
      auto& state = static_cast<LinearState&>(*states[begin]);
      const std::size_t first_draft = begin + state.begin_run(end - begin);
      for (std::size_t r = begin; r < end; ++r) {
        elu_plus_one(q.row(r), phi_q);
        elu_plus_one(k.row(r), phi_k);
        if (r >= first_draft) state.keep_draft(phi_k.data(), v.row(r).data());
        state.feed(phi_q.data(), phi_k.data(), v.row(r).data(), out.row(r).data());
      }
      begin = end;
    }
  }

 private:
  const LinearAttentionShape shape_;
  const std::size_t width_;  // H*D
};

}  // namespace

const AttentionKind kind_linear{
    .type = "linear",
    .doc = "sums over positions, read by phi(q) (Katharopoulos et al. 2020)",
    .state = "S [H, C, M] and Z [H, C]: constant",
    .cost = "constant",
    .keys = kKeys,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      return std::make_unique<LinearAttention>(params);
    },
    .samples = kSamples};

}  // namespace lintel
