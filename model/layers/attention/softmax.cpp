// SPDX-License-Identifier: Apache-2.0
// Softmax attention with a cache of keys and values (Vaswani et al. 2017): the state grows by one
// key and one value a head with every token.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/softmax_kernels.h"

namespace lintel {
namespace {

constexpr ConfigKey kKeys[] = {
    {.name = "scale",
     .type = ConfigKey::Type::kPositive,
     .doc = "of scores q.k",
     .high = 1e6,
     .initial = "null",
     .null_means = "1/sqrt(d_head)"},
};
constexpr const char* kSamples[] = {"", "scale=0.3"};

static_assert(History::kPage == kSoftmaxPage);

// Keys and values of every position fed, in pages that softmax_add_page reads.
class SoftmaxState final : public LayerState {
 public:
  // `shape` outlives the state.
  explicit SoftmaxState(const SoftmaxShape& shape)
      : shape_(shape), history_(softmax_page_floats(shape)) {}

  std::size_t bytes() const override { return history_.bytes(); }
  // The same after num_tokens tokens, as StateLayout::state_bytes.
  static std::size_t bytes_of(const SoftmaxShape& shape, std::int64_t num_tokens) {
    return History::bytes_of(num_tokens, softmax_page_floats(shape));
  }

  void assign(const LayerState& other) override {
    history_.assign(static_cast<const SoftmaxState&>(other).history_);
  }
  void reset() override { history_.clear(); }

  void begin_speculation(std::size_t /*num_rows*/, std::span<float> /*memory*/) override {}
  void rollback(std::size_t num_rows) override {
    assert(num_rows <= history_.length());
    for (; num_rows > 0; --num_rows) {
      const std::size_t position = history_.remove_last();
      softmax_erase(shape_, History::slot_of(position), history_.page_of(position));
    }
    history_.shrink();
  }

  void save(std::int64_t since, StateWriter& writer) const override {
    history_.save(static_cast<std::size_t>(since), writer);
  }
  void load(std::int64_t position, StateReader& reader) override {
    history_.load(static_cast<std::size_t>(position), reader);
  }

  const History& history() const { return history_; }
  void append(const float* k, const float* v) {
    const std::size_t position = history_.append();
    softmax_append(shape_, k, v, History::slot_of(position), history_.page_of(position));
  }

 private:
  const SoftmaxShape& shape_;
  History history_;
};

class SoftmaxAttention final : public AttentionBackend {
 public:
  explicit SoftmaxAttention(const AttentionParams& params)
      : shape_{.n_heads = static_cast<std::size_t>(params.dims.n_heads),
               .d_head = static_cast<std::size_t>(params.dims.d_head)},
        scale_(static_cast<float>(
            params.config.number("scale", 1.0 / std::sqrt(params.dims.d_head)))) {}

  std::size_t block_floats() const override { return 0; }

  std::unique_ptr<LayerState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<SoftmaxState>(shape_);
  }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return SoftmaxState::bytes_of(shape_, num_tokens);
  }
  std::int64_t tokens_until_full() const override { return kNeverFull; }
  std::size_t rollback_floats(std::size_t /*num_rows*/, std::int64_t /*end*/) const override {
    return 0;
  }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    for (std::size_t r = 0; r < states.size();) {
      const std::size_t count = run_length(states.subspan(r));
      auto& state = static_cast<SoftmaxState&>(*states[r]);
      const std::size_t first_position = state.history().length();
      for (std::size_t i = r; i < r + count; ++i) {
        state.append(k.row(i).data(), v.row(i).data());
      }
      attend(state.history(), first_position, q.rows_from(r, count), out.rows_from(r, count),
             scratch);
      r += count;
    }
  }

 private:
  // Rows of one sequence, the first of them at first_position. Every page is read once for all of
  // them.
  void attend(const History& history, std::size_t first_position, MatrixView<const float> q,
              MatrixView<float> out, AttentionScratch& scratch) const {
    const std::size_t width = shape_.n_heads * shape_.d_head;
    const std::size_t floats = q.rows() * (width + 2 * shape_.n_heads);
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const scaled = scratch.floats.data();         // [rows, H*D]
    float* const max = scaled + q.rows() * width;        // [rows, H]
    float* const sum = max + q.rows() * shape_.n_heads;  // [rows, H]
    for (std::size_t r = 0; r < q.rows(); ++r) {
      std::ranges::transform(q.row(r), scaled + r * width, [this](float x) { return x * scale_; });
      std::ranges::fill(out.row(r), 0.0f);
    }
    std::fill(max, sum, softmax_least());
    std::fill_n(sum, q.rows() * shape_.n_heads, 0.0f);

    const auto rows_from = [&](std::size_t r) {
      return SoftmaxRows{.count = q.rows() - r,
                         .q = scaled + r * width,
                         .max = max + r * shape_.n_heads,
                         .sum = sum + r * shape_.n_heads,
                         .out = out.row(r).data(),
                         .out_stride = out.stride()};
    };
    for (std::size_t begin = 0; begin < history.length(); begin += kSoftmaxPage) {
      // Rows before `begin` see nothing of the page.
      const std::size_t r = begin > first_position ? begin - first_position : 0;
      softmax_add_page(shape_, rows_from(r), history.page_of(begin),
                       first_position + r + 1 - begin);
    }
    softmax_finish(shape_, rows_from(0));
  }

  const SoftmaxShape shape_;
  const float scale_;
};

}  // namespace

const AttentionKind kind_softmax{
    .type = "softmax",
    .doc = "softmax over all positions, from a cache of keys and values (Vaswani et al. 2017)",
    .state = "keys [t, H, D] and values [t, H, M], in pages of 64 positions that are never copied",
    .cost = "reads all of them: grows with t",
    .keys = kKeys,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      return std::make_unique<SoftmaxAttention>(params);
    },
    .samples = kSamples};

}  // namespace lintel
