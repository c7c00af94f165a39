// SPDX-License-Identifier: Apache-2.0
// A kind of attention that is never served: a gated sum of the last values, weighted by how long
// ago they were. It has what the others have not: a ring, a tensor that is learned, a projection
// without bias and outputs of another width than H*D.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"

namespace lintel {
namespace {

constexpr ConfigKey kKeys[] = {
    {.name = "window", .type = ConfigKey::Type::kInteger, .doc = "positions seen", .high = 64},
    {.name = "gated",
     .type = ConfigKey::Type::kBoolean,
     .doc = "whether sums go through a gate",
     .initial = "true"},
};
constexpr const char* kSamples[] = {"window=5", "window=1", "window=33,gated=false"};

int width_of(const AttentionConfig& /*config*/, const LayerDims& dims) {
  return dims.n_heads * (dims.d_head + 1);
}

// The last values, in the block: that of position p at p % window.
class RecentState final : public LayerState {
 public:
  RecentState(std::span<float> block, std::size_t window, std::size_t width)
      : block_(block), window_(window), width_(width) {}

  std::size_t bytes() const override { return block_.size_bytes(); }
  void assign(const LayerState& other) override {
    const auto& from = static_cast<const RecentState&>(other);
    std::ranges::copy(from.block_, block_.begin());
    position_ = from.position_;
  }
  void reset() override {
    std::ranges::fill(block_, 0.0f);
    position_ = 0;
  }

  // Keeps the value that each draft takes the place of.
  void begin_speculation(std::size_t num_rows, std::span<float> memory) override {
    drafts_pending_ = num_rows;
    memory_ = memory.data();
  }
  void rollback(std::size_t num_rows) override {
    for (; num_rows > 0; --num_rows) {
      --position_;
      std::copy_n(memory_ + (position_ - first_draft_) * width_, width_, value(position_));
    }
    zero_memory(std::span(memory_, std::exchange(kept_, 0) * width_));
  }
  void begin_run(std::size_t num_rows) {
    kept_ = 0;
    first_draft_ = position_ + num_rows - std::exchange(drafts_pending_, 0);
  }

  void save(std::int64_t since, StateWriter& writer) const override {
    assert(static_cast<std::size_t>(since) <= position_);
    writer.value<std::uint64_t>(position_);
    writer.values(std::span<const float>(block_));
  }
  void load(std::int64_t position, StateReader& reader) override {
    const auto length = static_cast<std::size_t>(position);
    check_saved("position", reader.value<std::uint64_t>(), length);
    if (length < position_) throw ModelError("saved state: of fewer tokens than this one");
    read_finite(reader, block_);
    position_ = length;
  }

  std::size_t position() const { return position_; }
  float* value(std::size_t position) { return block_.data() + position % window_ * width_; }
  void append(const float* v) {
    float* const place = value(position_);
    if (position_ >= first_draft_) std::copy_n(place, width_, memory_ + kept_++ * width_);
    std::copy_n(v, width_, place);
    ++position_;
  }

 private:
  const std::span<float> block_;
  const std::size_t window_;
  const std::size_t width_;
  std::size_t position_ = 0;
  std::size_t drafts_pending_ = 0;
  std::size_t first_draft_ = 0;
  std::size_t kept_ = 0;
  float* memory_ = nullptr;
};

class RecentAttention final : public AttentionBackend {
 public:
  explicit RecentAttention(const AttentionParams& params)
      : window_(params.config.integer("window")),
        width_(static_cast<std::size_t>(width_of(params.config, params.dims))),
        is_gated_(params.config.boolean("gated")),
        weights_(params.own[0].values().begin(), params.own[0].values().end()) {}

  std::size_t block_floats() const override { return window_ * width_; }
  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    return std::make_unique<RecentState>(block, window_, width_);
  }
  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }
  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return num_rows * width_;
  }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& /*scratch*/) const override {
    for (std::size_t r = 0; r < states.size(); ++r) {
      auto& state = static_cast<RecentState&>(*states[r]);
      if (r == 0 || states[r] != states[r - 1]) state.begin_run(run_length(states.subspan(r)));
      state.append(inputs[1].row(r).data());
      const std::span<float> sum = out.row(r);
      std::ranges::fill(sum, 0.0f);
      for (std::size_t ago = 0; ago < std::min(window_, state.position()); ++ago) {
        const float* const value = state.value(state.position() - 1 - ago);
        for (std::size_t i = 0; i < width_; ++i) sum[i] += weights_[ago] * value[i];
      }
      if (!is_gated_) continue;
      for (std::size_t i = 0; i < width_; ++i) sum[i] /= 1.0f + std::exp(-inputs[0].row(r)[i]);
    }
  }

 private:
  const std::size_t window_;
  const std::size_t width_;
  const bool is_gated_;
  const std::vector<float> weights_;  // [window], the newest first
};

std::vector<Projection> projections(const AttentionConfig& config, const LayerDims& dims) {
  const int width = width_of(config, dims);
  return {{"gate_projection", width, /*has_bias=*/false},
          {"value_projection", width},
          {"query_projection", dims.width(), /*has_bias=*/true, /*is_read=*/false}};
}

std::vector<OwnTensor> tensors(const AttentionConfig& config, const LayerDims& /*dims*/) {
  return {{.name = "weights",
           .shape = {static_cast<std::int64_t>(config.integer("window"))},
           .shape_doc = "[window]",
           .is_learned = true,
           .draw = [](std::span<float> values, const OwnTensor&, std::uint64_t seed, int layer) {
             for (std::size_t i = 0; i < values.size(); ++i) {
               values[i] = 1.0f / static_cast<float>(i + 1 + seed % 7 + layer);
             }
           }}};
}

std::optional<Contradiction> contradiction(const AttentionConfig& config, const LayerDims& dims) {
  const std::size_t window = config.integer("window");
  if (dims.max_length == 0 || window <= static_cast<std::size_t>(dims.max_length)) return {};
  return Contradiction{"window", std::to_string(window),
                       "at most max_length = " + std::to_string(dims.max_length)};
}

}  // namespace

const AttentionKind kind_recent{
    .type = "recent",
    .doc = "the last values, weighted by how long ago they were",
    .state = "the last `window` values: constant",
    .cost = "reads all of them: constant",
    .keys = kKeys,
    .projections = projections,
    .out_width = width_of,
    .tensors = tensors,
    .contradiction = contradiction,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      return std::make_unique<RecentAttention>(params);
    },
    .samples = kSamples};

}  // namespace lintel
