// SPDX-License-Identifier: Apache-2.0
// Transformer-XL (Dai et al. 2019): softmax over the own segment and the positions before it that
// are remembered, with relative positions.
//
//   P(t)  = {s: max(0, (t div L) L - M) <= s <= t}
//   score = scale ((q + r_w_bias) . k_s + (q + r_r_bias) . r_{t-s})
//
// L is the length of a segment, M that of the memory, r_d the product of r_net and the sinusoidal
// row of distance d: section 3.3 and appendix B. The paper remembers hidden states, which a layer
// projects with the weights it has: keys and values of these positions are the same.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/relative_kernels.h"

namespace lintel {
namespace {

constexpr ConfigKey kKeys[] = {
    {.name = "scale",
     .type = ConfigKey::Type::kPositive,
     .doc = "of both terms of a score",
     .high = 1e6,
     .initial = "null",
     .null_means = "1/sqrt(d_head)"},
    {.name = "segment_length",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions of a segment",
     .high = 1 << 20},
    {.name = "memory_length",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions before the segment that are seen, too",
     .low = 0,
     .high = 1 << 20},
    {.name = "clamp_length",
     .type = ConfigKey::Type::kInteger,
     .doc = "the largest distance: what is further away counts as that far",
     .high = 1 << 20,
     .initial = "null",
     .null_means = "none"},
};
constexpr const char* kSamples[] = {
    "segment_length=8,memory_length=12", "segment_length=1,memory_length=0",
    "segment_length=1,memory_length=66,clamp_length=9,scale=0.4",
    "segment_length=13,memory_length=0,clamp_length=100", "segment_length=20,memory_length=45"};

RelativeShape relative_shape(const AttentionConfig& config, const LayerDims& dims) {
  RelativeShape shape{.n_heads = static_cast<std::size_t>(dims.n_heads),
                      .d_head = static_cast<std::size_t>(dims.d_head)};
  shape.ring = config.integer("segment_length") + config.integer("memory_length");
  if (dims.max_length > 0) {
    shape.ring = std::min(shape.ring, static_cast<std::size_t>(dims.max_length));
  }
  shape.distances =
      std::min(shape.ring, config.integer("clamp_length", /*if_null=*/shape.ring) + 1);
  return shape;
}

void draw_zeros(std::span<float> values, const OwnTensor& /*of*/, std::uint64_t /*seed*/,
                int /*layer*/) {
  std::ranges::fill(values, 0.0f);
}

std::vector<OwnTensor> tensors_of_transformer_xl(const AttentionConfig& /*config*/,
                                                 const LayerDims& dims) {
  const OwnTensor bias{.name = "r_w_bias",
                       .shape = {dims.n_heads, dims.d_head},
                       .shape_doc = "[H, D]",
                       .is_learned = true,
                       .draw = draw_zeros};
  OwnTensor distance_bias = bias;
  distance_bias.name = "r_r_bias";
  return {{.name = "r_net.weight",
           .shape = {dims.width(), dims.d_model},
           .shape_doc = "[H*D, E]",
           .is_learned = true,
           .draw = draw_fan_in},
          bias,
          distance_bias};
}

std::optional<Contradiction> contradiction_of_transformer_xl(const AttentionConfig& config,
                                                             const LayerDims& dims) {
  if (dims.d_model % 2 == 0) return std::nullopt;
  return Contradiction{
      "type",
      std::string("\"") + config.type() + "\" with d_model = " + std::to_string(dims.d_model),
      "an even d_model: distances are pairs of sine and cosine"};
}

// Keys and values of the last positions, in the sequence's flat block.
class TransformerXlState final : public LayerState {
 public:
  TransformerXlState(std::span<float> block, const RelativeShape& shape)
      : block_(block), shape_(shape) {}

  std::size_t bytes() const override { return block_.size_bytes(); }

  void assign(const LayerState& other) override {
    const auto& from = static_cast<const TransformerXlState&>(other);
    std::ranges::copy(from.block_, block_.begin());
    position_ = from.position_;
  }

  void reset() override {
    std::ranges::fill(block_, 0.0f);
    position_ = 0;
  }

  // The memory holds the key and value that each draft takes the place of.
  void begin_speculation(std::size_t num_rows, std::span<float> memory) override {
    assert(memory.size() >= num_rows * position_floats());
    drafts_pending_ = num_rows;
    replaced_ = memory.data();
  }

  void rollback(std::size_t num_rows) override {
    for (; num_rows > 0; --num_rows) {
      --position_;
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const float* const k = replaced(position_, h);
        relative_store(shape_, h, slot_of(position_), k, k + shape_.d_head, block_.data());
      }
    }
    zero_memory(std::span(replaced_, std::exchange(num_drafts_, 0) * position_floats()));
  }

  // The whole block, for every `since`.
  void save([[maybe_unused]] std::int64_t since, StateWriter& writer) const override {
    assert(static_cast<std::size_t>(since) <= position_);
    writer.value<std::uint64_t>(position_);
    writer.values(std::span<const float>(block_));
  }
  void load(std::int64_t position, StateReader& reader) override {
    const auto length = static_cast<std::size_t>(position);
    check_saved("position", reader.value<std::uint64_t>(), length);
    if (length < position_) {
      throw ModelError("saved state: found position " + std::to_string(position) +
                       ", expected at least " + std::to_string(position_));
    }
    read_finite(reader, block_);
    position_ = length;
  }

  // A run of num_rows rows is about to be fed, each head's by itself. Returns the first's position.
  std::size_t begin_run(std::size_t num_rows) {
    assert(drafts_pending_ <= num_rows);
    const std::size_t first = std::exchange(position_, position_ + num_rows);
    num_drafts_ = std::exchange(drafts_pending_, 0);
    first_draft_ = position_ - num_drafts_;
    return first;
  }
  // One head's key and value of a position of the run. In the order of positions.
  void store(std::size_t position, std::size_t head, const float* k, const float* v) {
    if (position >= first_draft_) {
      float* const kept = replaced(position, head);
      relative_fetch(shape_, head, slot_of(position), block_.data(), kept, kept + shape_.d_head);
    }
    relative_store(shape_, head, slot_of(position), k, v, block_.data());
  }

  const float* ring() const { return block_.data(); }

  static std::size_t replaced_floats(const RelativeShape& shape, std::size_t num_rows) {
    return num_rows * 2 * shape.n_heads * shape.d_head;
  }

 private:
  std::size_t slot_of(std::size_t position) const { return position % shape_.ring; }
  std::size_t position_floats() const { return replaced_floats(shape_, 1); }
  float* replaced(std::size_t draft, std::size_t head) const {
    return replaced_ + (draft - first_draft_) * position_floats() + head * 2 * shape_.d_head;
  }

  const std::span<float> block_;
  const RelativeShape& shape_;  // the backend's
  std::size_t position_ = 0;    // tokens fed

  // Valid from one step to the next.
  std::size_t drafts_pending_ = 0;  // drafts of the next run
  std::size_t num_drafts_ = 0;      // of the last run, until they are judged
  std::size_t first_draft_ = 0;     // position of the last run's first draft, or where it ended
  float* replaced_ = nullptr;       // [drafts, H, k D | v D]
};

class TransformerXl final : public AttentionBackend {
 public:
  explicit TransformerXl(const AttentionParams& params)
      : shape_(relative_shape(params.config, params.dims)),
        segment_length_(params.config.integer("segment_length")),
        memory_length_(params.config.integer("memory_length")),
        scale_(
            static_cast<float>(params.config.number("scale", 1.0 / std::sqrt(params.dims.d_head)))),
        content_bias_(copied(params.tensor("r_w_bias"))),
        distance_bias_(copied(params.tensor("r_r_bias"))),
        table_(relative_table(shape_, params.tensor("r_net.weight"))) {}

  std::size_t block_floats() const override { return relative_ring_floats(shape_); }

  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<TransformerXlState>(block, shape_);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }

  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return TransformerXlState::replaced_floats(shape_, num_rows);
  }

  // Heads one after the other: what rows of one sequence read of a head stays near.
  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const std::size_t d_head = shape_.d_head;
    const std::size_t floats = 2 * d_head + relative_scores(shape_);
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const content = scratch.floats.data();  // scale (q + r_w_bias)
    float* const distance = content + d_head;      // scale (q + r_r_bias)
    float* const scores = distance + d_head;
    for (std::size_t begin = 0; begin < states.size();) {
      const std::size_t count = run_length(states.subspan(begin));
      auto& state = static_cast<TransformerXlState&>(*states[begin]);
      const std::size_t first_position = state.begin_run(count);
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const std::size_t at = h * d_head;
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t t = first_position + i;
          const std::size_t r = begin + i;
          const float* const q = inputs[0].row(r).data() + at;
          for (std::size_t c = 0; c < d_head; ++c) {
            content[c] = (q[c] + content_bias_[at + c]) * scale_;
            distance[c] = (q[c] + distance_bias_[at + c]) * scale_;
          }
          state.store(t, h, inputs[1].row(r).data() + at, inputs[2].row(r).data() + at);
          relative_attend(shape_, h, content, distance, first_seen(t), t, state.ring(),
                          table_.data(), scores, out.row(r).data() + at);
        }
      }
      begin += count;
    }
  }

 private:
  static std::vector<float> copied(const Matrix& matrix) {
    return {matrix.values().begin(), matrix.values().end()};
  }

  std::size_t first_seen(std::size_t t) const {
    const std::size_t segment = t / segment_length_ * segment_length_;
    return segment - std::min(segment, memory_length_);
  }

  const RelativeShape shape_;
  const std::size_t segment_length_;  // L
  const std::size_t memory_length_;   // M
  const float scale_;
  const std::vector<float> content_bias_;   // [H, D]
  const std::vector<float> distance_bias_;  // [H, D]
  const std::vector<float> table_;
};

}  // namespace

const AttentionKind kind_transformer_xl{
    .type = "transformer_xl",
    .doc =
        "softmax over the own segment and the last positions before it, by distance "
        "(Dai et al. 2019)",
    .state = "keys and values [memory_length + segment_length, H, D]: constant",
    .cost = "reads up to memory_length + segment_length positions: constant",
    .keys = kKeys,
    .tensors = tensors_of_transformer_xl,
    .table_floats = [](const AttentionConfig& config, const LayerDims& dims) -> std::size_t {
      return relative_table_floats(relative_shape(config, dims));
    },
    .contradiction = contradiction_of_transformer_xl,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      return std::make_unique<TransformerXl>(params);
    },
    .samples = kSamples};

}  // namespace lintel
