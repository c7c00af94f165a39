// SPDX-License-Identifier: Apache-2.0
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
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/core/tensor.h"
#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/linformer_kernels.h"
#include "model/layers/attention/common/softmax_kernels.h"
#include "model/layers/attention/sum_attention.h"

namespace lintel {

// Parts common to both modes of Linformer: the projections of positions to slots, and the shapes.

inline bool is_linformer_prefix(const AttentionConfig& config) {
  return config.choice("mode") == "prefix";
}

// Columns of proj_k: positions of a block, or of the longest sequence.
inline std::int64_t linformer_columns(const AttentionConfig& config, const LayerDims& dims) {
  return is_linformer_prefix(config) ? dims.max_length
                                     : static_cast<std::int64_t>(config.integer("block_size"));
}

// proj_k and proj_v, [P, N, rank]: what one position adds to the slots lies together.
class LinformerProjections {
 public:
  explicit LinformerProjections(const AttentionParams& params)
      : rank_(params.config.integer("rank")),
        columns_(static_cast<std::size_t>(linformer_columns(params.config, params.dims))),
        per_head_(params.config.boolean("per_head")),
        keys_(transposed(params.tensor("proj_k"))) {
    if (!params.config.boolean("share_key_value")) values_ = transposed(params.tensor("proj_v"));
  }

  std::size_t columns() const { return columns_; }
  // Rows of position t (of a block in mode blocks) and of those after it: [N - t, rank].
  const float* of_keys(std::size_t head, std::size_t t) const { return keys_.data() + at(head, t); }
  const float* of_values(std::size_t head, std::size_t t) const {
    return (values_.empty() ? keys_ : values_).data() + at(head, t);
  }

 private:
  std::vector<float> transposed(const Matrix& from) const {  // [P * rank, N]
    assert(from.cols() == columns_);
    std::vector<float> to(from.rows() * columns_);
    for (std::size_t row = 0; row < from.rows(); ++row) {
      const std::size_t first = row / rank_ * columns_ * rank_ + row % rank_;
      for (std::size_t t = 0; t < columns_; ++t) to[first + t * rank_] = from.row(row)[t];
    }
    return to;
  }
  std::size_t at(std::size_t head, std::size_t t) const {
    assert(t < columns_);
    return ((per_head_ ? head : 0) * columns_ + t) * rank_;
  }

  const std::size_t rank_;
  const std::size_t columns_;  // N
  const bool per_head_;
  std::vector<float> keys_;
  std::vector<float> values_;  // empty where keys_ serves both
};

struct LinformerShape {
  explicit LinformerShape(const AttentionParams& params)
      : n_heads(static_cast<std::size_t>(params.dims.n_heads)),
        d_head(static_cast<std::size_t>(params.dims.d_head)),
        rank(params.config.integer("rank")),
        block_size(params.config.integer("block_size", /*if_null=*/0)),
        scale(static_cast<float>(
            params.config.number("scale", 1.0 / std::sqrt(params.dims.d_head)))) {}

  std::size_t width() const { return n_heads * d_head; }
  SoftmaxShape pages() const { return {.n_heads = n_heads, .d_head = d_head}; }
  // Keys and values of `rank` slots of all heads.
  std::size_t slots_floats() const { return 2 * rank * width(); }
  LinformerSlots slots(std::size_t head, float* of_all) const {
    float* const keys = of_all + head * 2 * rank * d_head;
    return {.d_head = d_head, .rank = rank, .keys = keys, .values = keys + rank * d_head};
  }

  std::size_t n_heads;     // H
  std::size_t d_head;      // D
  std::size_t rank;        // slots, of each block in mode blocks
  std::size_t block_size;  // B
  float scale;
};

// Linformer in mode blocks: a state that grows by `rank` summaries with every block.

static_assert(History::kPage == kSoftmaxPage);

// Mode blocks: the summaries of all blocks before the own one, and that one's keys and values, both
// in pages of softmax_kernels.h. Position t of the sequence is position t % B of its block, and
// takes the place that position t - B had: a block that is complete stays until the next one
// begins.
class LinformerBlocksState final : public LayerState {
 public:
  explicit LinformerBlocksState(const LinformerShape& shape)
      : shape_(shape),
        summaries_(softmax_page_floats(shape.pages())),
        own_(softmax_page_floats(shape.pages())) {}

  static std::size_t most_bytes(const LinformerShape& shape, std::int64_t num_tokens) {
    if (num_tokens > INT32_MAX) return SIZE_MAX;
    const auto n = static_cast<std::size_t>(num_tokens);
    const std::size_t page = softmax_page_floats(shape.pages());
    const std::size_t summaries =
        History::bytes_of(static_cast<std::int64_t>(num_summaries(shape, n)), page);
    if (summaries == SIZE_MAX) return SIZE_MAX;
    return summaries + PagedArray<float>::bytes_of(own_pages(shape, n), page);
  }

  std::size_t bytes() const override { return summaries_.bytes() + own_.bytes(); }

  void assign(const LayerState& other) override {
    const auto& from = static_cast<const LinformerBlocksState&>(other);
    summaries_.assign(from.summaries_);
    own_.assign(from.own_);
    position_ = from.position_;
  }

  void reset() override {
    summaries_.clear();
    own_.clear();
    position_ = 0;
  }

  // The memory holds the key and value that each draft takes the place of.
  void begin_speculation(std::size_t num_rows, std::span<float> memory) override {
    assert(memory.size() >= num_rows * 2 * shape_.width());
    drafts_pending_ = num_rows;
    replaced_ = memory.data();
  }

  void rollback(std::size_t num_rows) override {
    for (; num_rows > 0; --num_rows) {
      --position_;
      const float* const replaced = replaced_ + (position_ - first_draft_) * 2 * shape_.width();
      softmax_append(shape_.pages(), replaced, replaced + shape_.width(), own_slot(), own_page());
      if (position_ == 0 || in_block() != 0) continue;
      // The token had summarised the block before it.
      for (std::size_t m = 0; m < shape_.rank; ++m) {
        const std::size_t summary = summaries_.remove_last();
        softmax_erase(shape_.pages(), History::slot_of(summary), summaries_.page_of(summary));
      }
    }
    summaries_.shrink();
    own_.shrink_to(own_pages(shape_, position_));
    zero_memory(std::span(replaced_, std::exchange(num_drafts_, 0) * 2 * shape_.width()));
  }

  // The own block is written whole, for every `since`.
  void save(std::int64_t since, StateWriter& writer) const override {
    writer.value<std::uint64_t>(position_);
    summaries_.save(num_summaries(shape_, static_cast<std::size_t>(since)), writer);
    for (std::size_t p = 0; p < saved_pages(); ++p) {
      writer.values(std::span<const float>(own_.page(p), softmax_page_floats(shape_.pages())));
    }
  }
  void load(std::int64_t position, StateReader& reader) override {
    const auto length = static_cast<std::size_t>(position);
    check_saved("position", reader.value<std::uint64_t>(), length);
    if (length < position_ || length > INT32_MAX) {
      throw ModelError("saved state: found position " + std::to_string(position) + ", expected " +
                       std::to_string(position_) + " to " + std::to_string(INT32_MAX));
    }
    summaries_.load(num_summaries(shape_, length), reader);
    position_ = length;
    for (std::size_t p = 0; p < saved_pages(); ++p) {
      own_.grow_to(p + 1);
      read_finite(reader, std::span(own_.page(p), softmax_page_floats(shape_.pages())));
    }
    own_.grow_to(own_pages(shape_, position_));
  }

  // A run of num_rows rows is about to be fed.
  void begin_run(std::size_t num_rows) {
    assert(drafts_pending_ <= num_rows);
    num_drafts_ = std::exchange(drafts_pending_, 0);
    first_draft_ = position_ + num_rows - num_drafts_;
  }

  // Position of the next token in its block.
  std::size_t in_block() const { return position_ % shape_.block_size; }
  // True if the next token begins a block that is not the first.
  bool has_complete_block() const { return position_ > 0 && in_block() == 0; }

  void append(const float* k, const float* v) {
    own_.grow_to(own_pages(shape_, position_ + 1));
    if (position_ >= first_draft_) {
      float* const replaced = replaced_ + (position_ - first_draft_) * 2 * shape_.width();
      softmax_read(shape_.pages(), own_slot(), own_page(), replaced, replaced + shape_.width());
    }
    softmax_append(shape_.pages(), k, v, own_slot(), own_page());
    ++position_;
  }
  void append_summary(const float* k, const float* v) {
    const std::size_t at = summaries_.append();
    softmax_append(shape_.pages(), k, v, History::slot_of(at), summaries_.page_of(at));
  }

  const History& summaries() const { return summaries_; }
  // The page of positions kSoftmaxPage * i of the block and after.
  const float* own_page(std::size_t i) const { return own_.page(i); }

 private:
  // Summaries of a sequence of n tokens.
  static std::size_t num_summaries(const LinformerShape& shape, std::size_t n) {
    return n == 0 ? 0 : (n - 1) / shape.block_size * shape.rank;
  }
  static std::size_t own_pages(const LinformerShape& shape, std::size_t n) {
    return (std::min(n, shape.block_size) + kSoftmaxPage - 1) / kSoftmaxPage;
  }
  // Pages that hold something of the last token's block.
  std::size_t saved_pages() const {
    return position_ == 0 ? 0 : (position_ - 1) % shape_.block_size / kSoftmaxPage + 1;
  }
  std::size_t own_slot() const { return in_block() % kSoftmaxPage; }
  float* own_page() { return own_.page(in_block() / kSoftmaxPage); }

  const LinformerShape& shape_;  // the backend's
  History summaries_;
  PagedArray<float> own_;
  std::size_t position_ = 0;  // tokens fed

  // Valid from one step to the next.
  std::size_t drafts_pending_ = 0;  // drafts of the next run
  std::size_t num_drafts_ = 0;      // of the last run, until they are judged
  std::size_t first_draft_ = 0;     // position of the last run's first draft, or where it ended
  float* replaced_ = nullptr;       // [drafts, k H*D | v H*D]
};

class LinformerBlocks final : public AttentionBackend {
 public:
  explicit LinformerBlocks(const AttentionParams& params) : shape_(params), projected_(params) {}

  std::size_t block_floats() const override { return 0; }

  std::unique_ptr<LayerState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<LinformerBlocksState>(shape_);
  }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return LinformerBlocksState::most_bytes(shape_, num_tokens);
  }
  std::int64_t tokens_until_full() const override { return kNeverFull; }
  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return num_rows * 2 * shape_.width();
  }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    for (std::size_t r = 0; r < states.size();) {
      const std::size_t end = r + run_length(states.subspan(r));
      auto& state = static_cast<LinformerBlocksState&>(*states[r]);
      state.begin_run(end - r);
      while (r < end) {  // rows of one block
        if (state.has_complete_block()) summarise(state, scratch);
        const std::size_t first = state.in_block();
        const std::size_t count = std::min(end - r, shape_.block_size - first);
        for (std::size_t i = r; i < r + count; ++i) {
          state.append(k.row(i).data(), v.row(i).data());
        }
        attend(state, first, q.rows_from(r, count), out.rows_from(r, count), scratch);
        r += count;
      }
    }
  }

 private:
  void summarise(LinformerBlocksState& state, AttentionScratch& scratch) const {
    const std::size_t width = shape_.width();
    const std::size_t floats = shape_.slots_floats() + 2 * width;
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const sums = scratch.floats.data();
    float* const k = sums + shape_.slots_floats();  // [H*D] of one slot
    float* const v = k + width;
    std::fill_n(sums, shape_.slots_floats(), 0.0f);
    const std::size_t head_floats = 2 * kSoftmaxPage * shape_.d_head;  // of a page
    for (std::size_t first = 0; first < shape_.block_size; first += kSoftmaxPage) {
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const float* const keys = state.own_page(first / kSoftmaxPage) + h * head_floats;
        linformer_add_block(shape_.slots(h, sums), projected_.of_keys(h, first),
                            projected_.of_values(h, first), keys, kSoftmaxPage,
                            keys + kSoftmaxPage * shape_.d_head,
                            std::min(kSoftmaxPage, shape_.block_size - first));
      }
    }
    for (std::size_t m = 0; m < shape_.rank; ++m) {
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const LinformerSlots slots = shape_.slots(h, sums);
        for (std::size_t c = 0; c < shape_.d_head; ++c) {
          k[h * shape_.d_head + c] = slots.keys[c * shape_.rank + m];
          v[h * shape_.d_head + c] = slots.values[m * shape_.d_head + c];
        }
      }
      state.append_summary(k, v);
    }
  }

  // Rows of one block, the first of them at position `first` of it.
  void attend(const LinformerBlocksState& state, std::size_t first, MatrixView<const float> q,
              MatrixView<float> out, AttentionScratch& scratch) const {
    const std::size_t width = shape_.width();
    const std::size_t floats = q.rows() * (width + 2 * shape_.n_heads);
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const scaled = scratch.floats.data();         // [rows, H*D]
    float* const max = scaled + q.rows() * width;        // [rows, H]
    float* const sum = max + q.rows() * shape_.n_heads;  // [rows, H]
    for (std::size_t r = 0; r < q.rows(); ++r) {
      std::ranges::transform(q.row(r), scaled + r * width,
                             [this](float x) { return x * shape_.scale; });
      std::ranges::fill(out.row(r), 0.0f);
    }
    std::fill(max, sum, softmax_least());
    std::fill_n(sum, q.rows() * shape_.n_heads, 0.0f);

    const SoftmaxShape pages = shape_.pages();
    const auto rows = [&](std::size_t r, std::size_t count) {
      return SoftmaxRows{.count = count,
                         .q = scaled + r * width,
                         .max = max + r * shape_.n_heads,
                         .sum = sum + r * shape_.n_heads,
                         .out = out.row(r).data(),
                         .out_stride = out.stride()};
    };
    // All rows see all summaries.
    const History& summaries = state.summaries();
    for (std::size_t begin = 0; begin < summaries.length(); begin += kSoftmaxPage) {
      const std::size_t visible = std::min(kSoftmaxPage, summaries.length() - begin);
      for (std::size_t r = 0; r < q.rows(); ++r) {
        softmax_add_page(pages, rows(r, 1), summaries.page_of(begin), visible);
      }
    }
    // Each row sees one position of the own block more than the row before it.
    for (std::size_t begin = 0; begin < first + q.rows(); begin += kSoftmaxPage) {
      const std::size_t r = begin > first ? begin - first : 0;
      softmax_add_page(pages, rows(r, q.rows() - r), state.own_page(begin / kSoftmaxPage),
                       first + r + 1 - begin);
    }
    softmax_finish(pages, rows(0, q.rows()));
  }

  const LinformerShape shape_;
  const LinformerProjections projected_;
};

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
class LinformerPrefixState final : public RecurrentState {
 public:
  LinformerPrefixState(std::span<float> block, const LinformerShape& shape,
                       const LinformerProjections& projected)
      : RecurrentState(block, kept_floats(shape), static_cast<std::int64_t>(projected.columns())),
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
    for (std::size_t i = 0; i < count; ++i, kept += RecurrentState::kept_floats()) {
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

  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<LinformerPrefixState>(block, shape_, projected_);
  }

  std::size_t state_bytes(std::int64_t /*num_tokens*/) const override {
    return block_floats() * sizeof(float);
  }
  std::int64_t tokens_until_full() const override { return 0; }

  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return RecurrentState::rollback_floats(block_floats(),
                                           LinformerPrefixState::kept_floats(shape_), num_rows);
  }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
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
