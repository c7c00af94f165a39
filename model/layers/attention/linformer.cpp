// Linformer (Wang et al. 2020): positions are projected to a few slots, by one learned matrix for
// keys and one for values. As published it mixes over all positions; here are two causal forms of
// it.
//
//   prefix  every position adds to every slot (Peng et al. 2021, "ABC", section 3, who show that
//           Linformer is a case of it):
//             K_t[m] = K_{t-1}[m] + proj_k[m, t] k_t      V_t[m] = V_{t-1}[m] + proj_v[m, t] v_t
//             out = sum over m of softmax(scale q_t . K_t)[m] V_t[m]
//   blocks  a block of B positions that is complete becomes `rank` summaries (after the projections
//           by segments of Zhu et al. 2021, "Long-Short Transformer"):
//             Ks_b[m] = sum over u of proj_k[m, u] k_{bB+u}      Vs_b[m] likewise
//           and one softmax is taken over the summaries of the blocks before, and the positions of
//           the own block up to t.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/linformer_kernels.h"
#include "model/layers/attention/linformer_blocks.h"
#include "model/layers/attention/linformer_slots.h"
#include "model/layers/attention/sum_state.h"

namespace lintel {
namespace {

constexpr ConfigKey kKeys[] = {
    {.name = "scale",
     .type = ConfigKey::Type::kPositive,
     .doc = "of scores q.k",
     .high = 1e6,
     .initial = "null",
     .null_means = "1/sqrt(d_head)"},
    {.name = "mode",
     .type = ConfigKey::Type::kChoice,
     .doc = "what slots are sums of: complete blocks, or all positions so far, which needs a "
            "max_length",
     .choices = {"blocks", "prefix"}},
    {.name = "rank", .type = ConfigKey::Type::kInteger, .doc = "slots", .high = 65536},
    {.name = "block_size",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions of a block, for mode blocks",
     .high = 1 << 20,
     .initial = "null",
     .null_means = "none, for mode prefix"},
    {.name = "per_head",
     .type = ConfigKey::Type::kBoolean,
     .doc = "every head has projections of its own",
     .initial = "false"},
    {.name = "share_key_value",
     .type = ConfigKey::Type::kBoolean,
     .doc = "values are projected as keys are",
     .initial = "false"},
};
constexpr const char* kSamples[] = {
    "mode=blocks,rank=3,block_size=8",
    "mode=blocks,rank=20,block_size=7,per_head=true,share_key_value=true,scale=0.4",
    "mode=blocks,rank=2,block_size=1",
    "mode=blocks,rank=70,block_size=65",
    "mode=prefix,rank=6,block_size=null",
    "mode=prefix,rank=21,block_size=null,per_head=true,share_key_value=true,scale=0.4"};

// Values of proj_k: as many as a tensor of a layer may sensibly have.
constexpr std::int64_t kMaxProjected = std::int64_t{1} << 30;

std::vector<OwnTensor> tensors_of_linformer(const AttentionConfig& config, const LayerDims& dims) {
  const std::int64_t planes = config.boolean("per_head") ? dims.n_heads : 1;
  const OwnTensor keys{.name = "proj_k",
                       .shape = {planes, static_cast<std::int64_t>(config.integer("rank")),
                                 linformer_columns(config, dims)},
                       .shape_doc = "[1 or H, rank, block_size or max_length]",
                       .is_learned = true,
                       .draw = draw_fan_in};
  if (config.boolean("share_key_value")) return {keys};
  OwnTensor values = keys;
  values.name = "proj_v";
  return {keys, values};
}

std::optional<Contradiction> contradiction_of_linformer(const AttentionConfig& config,
                                                        const LayerDims& dims) {
  if (is_linformer_prefix(config) != config.is_null("block_size")) {
    if (is_linformer_prefix(config)) {
      return Contradiction{"block_size", std::to_string(config.integer("block_size")),
                           "null for mode \"prefix\""};
    }
    return Contradiction{"block_size", "null", "a number for mode \"blocks\""};
  }
  if (is_linformer_prefix(config) && dims.max_length == 0) {
    return Contradiction{"mode", "\"prefix\"", "\"blocks\" where max_length is 0"};
  }
  const std::int64_t rows = static_cast<std::int64_t>(config.integer("rank")) *
                            (config.boolean("per_head") ? dims.n_heads : 1);
  if (rows > kMaxProjected / linformer_columns(config, dims)) {
    return Contradiction{"rank", std::to_string(config.integer("rank")),
                         "proj_k of at most " + std::to_string(kMaxProjected) + " values"};
  }
  return std::nullopt;
}

// Mode prefix: the slots of every head. Of a draft k and v are kept.
class LinformerPrefixState final : public SumState {
 public:
  LinformerPrefixState(std::span<float> block, const LinformerShape& shape,
                       const LinformerProjections& projected)
      : SumState(block, kept_floats(shape), static_cast<std::int64_t>(projected.columns())),
        shape_(shape),
        projected_(projected) {}

  static std::size_t kept_floats(const LinformerShape& shape) { return 2 * shape.width(); }

  void keep_draft(const float* k, const float* v) {
    float* const kept = keep();
    std::copy_n(k, shape_.width(), kept);
    std::copy_n(v, shape_.width(), kept + shape_.width());
  }

  // One token. q: scaled; weights: as linformer_add_and_read asks for.
  void feed(const float* q, const float* k, const float* v, float* weights, float* out) {
    const auto t = static_cast<std::size_t>(next_position());
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      const std::size_t at = h * shape_.d_head;
      linformer_add_and_read(shape_.slots(h, block().data()), projected_.of_keys(h, t),
                             projected_.of_values(h, t), k + at, v + at, q + at, weights, out + at);
    }
  }

 private:
  void feed_again(const float* kept, std::size_t count, std::span<float> /*work*/) override {
    for (std::size_t i = 0; i < count; ++i, kept += SumState::kept_floats()) {
      const auto t = static_cast<std::size_t>(next_position());
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const float* const k = kept + h * shape_.d_head;
        linformer_add(shape_.slots(h, block().data()), projected_.of_keys(h, t),
                      projected_.of_values(h, t), k, k + shape_.width());
      }
    }
  }

  const LinformerShape& shape_;  // the backend's, as is the next
  const LinformerProjections& projected_;
};

class LinformerPrefix final : public AttentionBackend {
 public:
  explicit LinformerPrefix(const AttentionParams& params) : shape_(params), projected_(params) {}

  std::size_t block_floats() const override { return shape_.slots_floats(); }

  std::unique_ptr<AttentionState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<LinformerPrefixState>(block, shape_, projected_);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }

  std::size_t take_back_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return SumState::take_back_floats(block_floats(), LinformerPrefixState::kept_floats(shape_),
                                      num_rows);
  }

  void step(std::span<AttentionState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    const std::size_t floats = shape_.width() + linformer_weights(shape_.rank);
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const scaled = scratch.floats.data();
    float* const weights = scaled + shape_.width();
    for (std::size_t begin = 0; begin < states.size();) {
      const std::size_t end = begin + run_length(states.subspan(begin));
      auto& state = static_cast<LinformerPrefixState&>(*states[begin]);
      const std::size_t first_draft = begin + state.begin_run(end - begin);
      for (std::size_t r = begin; r < end; ++r) {
        if (r >= first_draft) state.keep_draft(k.row(r).data(), v.row(r).data());
        std::ranges::transform(q.row(r), scaled, [this](float x) { return x * shape_.scale; });
        state.feed(scaled, k.row(r).data(), v.row(r).data(), weights, out.row(r).data());
      }
      begin = end;
    }
  }

 private:
  const LinformerShape shape_;
  const LinformerProjections projected_;
};

}  // namespace

const AttentionKind kind_linformer{
    .type = "linformer",
    .doc =
        "softmax over slots that positions are projected to (Wang et al. 2020), made causal by "
        "blocks or by running sums (Peng et al. 2021)",
    .state =
        "mode prefix: keys and values [H, rank, D], constant; mode blocks: `rank` pairs of them "
        "for each complete block, in pages, and those of the own block",
    .cost =
        "mode prefix: reads `rank` slots, constant; mode blocks: rank t / block_size slots and "
        "the own block, grows with t",
    .keys = kKeys,
    .tensors = tensors_of_linformer,
    .contradiction = contradiction_of_linformer,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      if (is_linformer_prefix(params.config)) return std::make_unique<LinformerPrefix>(params);
      return std::make_unique<LinformerBlocks>(params);
    },
    .samples = kSamples};

}  // namespace lintel
