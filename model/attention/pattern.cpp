// Softmax attention over a pattern of positions: Sparse Transformer (Child et al. 2019), Longformer
// (Beltagy et al. 2020) and BigBird (Zaheer et al. 2020) in their causal forms. They differ in who
// sees whom (PositionPattern) and in nothing else.
//
//   out_h(t) = sum over s in P_h(t) of w_s v_s,   w = softmax of scale * q_t . k_s over P_h(t)
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/attention/attention.h"
#include "model/attention/parts/member_kernels.h"
#include "model/attention/pattern_state.h"
#include "model/attention/position_pattern.h"
#include "model/base/random.h"

namespace lintel {
namespace {

// The members of one head, as they come, in blocks: the i-th that is seen is in block i /
// kMemberBlock, so that the order of sums is fixed by what is seen from a position.
class Blocks {
 public:
  Blocks(const float* q, std::size_t d_head, float* out)
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
  std::size_t take_back_floats(std::size_t num_rows) const override {
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
      Blocks blocks(scaled + column, shape_.d_head, out.data() + column);
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

constexpr ConfigKey kScale{.name = "scale",
                           .type = ConfigKey::Type::kPositive,
                           .doc = "of scores q.k",
                           .high = 1e6,
                           .initial = "null",
                           .null_means = "1/sqrt(d_head)"};
constexpr double kMostPositions = 1 << 20;  // of a stride, a window, a block

std::size_t heads_of(const AttentionParams& params) {
  return static_cast<std::size_t>(params.dims.n_heads);
}
std::size_t length_of(const AttentionParams& params) {
  return static_cast<std::size_t>(params.dims.max_length);
}

// --- sparse_transformer

constexpr ConfigKey kSparseKeys[] = {
    kScale,
    {.name = "pattern",
     .type = ConfigKey::Type::kChoice,
     .doc = "what is local and what is far: the last `stride` positions and every `stride`-th "
            "before, or the own block of `stride` and columns of all blocks",
     .choices = {"strided", "fixed"}},
    {.name = "stride",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions of a block, or from one far position to the next",
     .high = kMostPositions},
    {.name = "columns",
     .type = ConfigKey::Type::kInteger,
     .doc = "far positions of a block; pattern fixed",
     .high = kMostPositions,
     .initial = "1"},
    {.name = "column_groups",
     .type = ConfigKey::Type::kInteger,
     .doc = "heads in turn have columns of their own, so many different ones; pattern fixed",
     .high = 1024,
     .initial = "1"},
    {.name = "part",
     .type = ConfigKey::Type::kChoice,
     .doc = "which of them are seen; by_head: local ones by heads 0, 2, .., far ones by the others",
     .initial = "\"both\"",
     .choices = {"both", "local", "far", "by_head"}},
};
constexpr const char* kSparseSamples[] = {"pattern=strided,stride=6",
                                          "pattern=strided,stride=9,part=local",
                                          "pattern=strided,stride=5,part=far,scale=0.3",
                                          "pattern=strided,stride=7,part=by_head",
                                          "pattern=fixed,stride=8,columns=2,column_groups=3",
                                          "pattern=fixed,stride=6,columns=6,part=far",
                                          "pattern=fixed,stride=10,part=by_head",
                                          "pattern=fixed,stride=12,part=local"};

std::optional<Contradiction> sparse_contradiction(const AttentionConfig& config,
                                                  const LayerDims& /*dims*/) {
  const std::size_t columns = config.integer("columns");
  const std::size_t groups = config.integer("column_groups");
  if (config.choice("pattern") == "strided") {
    for (const char* const key : {"columns", "column_groups"}) {
      if (config.integer(key) == 1) continue;
      return Contradiction{key, std::to_string(config.integer(key)),
                           "1, or it left out: only pattern \"fixed\" has columns"};
    }
    return {};
  }
  const std::size_t stride = config.integer("stride");
  if (columns * groups <= stride) return {};
  return Contradiction{"columns", std::to_string(columns),
                       "columns * column_groups = " + std::to_string(columns * groups) +
                           " to be at most stride = " + std::to_string(stride)};
}

std::unique_ptr<AttentionBackend> make_sparse(const AttentionParams& params) {
  const AttentionConfig& config = params.config;
  const std::string& part = config.choice("part");
  SparseParts parts;
  parts.even_local = part != "far";
  parts.odd_local = part == "both" || part == "local";
  parts.even_far = part == "both" || part == "far";
  parts.odd_far = part != "local";
  const std::size_t stride = config.integer("stride");
  return std::make_unique<PatternAttention>(
      params, config.choice("pattern") == "strided"
                  ? strided_pattern(heads_of(params), parts, stride, length_of(params))
                  : fixed_pattern(heads_of(params), parts, stride, config.integer("columns"),
                                  config.integer("column_groups"), length_of(params)));
}

// --- longformer

constexpr ConfigKey kLongformerKeys[] = {
    kScale,
    {.name = "window",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions seen, the own one included",
     .high = kMostPositions},
    {.name = "dilation",
     .type = ConfigKey::Type::kIntegers,
     .doc = "from one position of the window to the next, of all heads or of each",
     .high = 65536,
     .initial = "1"},
    {.name = "global_tokens",
     .type = ConfigKey::Type::kInteger,
     .doc = "so many of the sequence's first positions see all before them, and are seen by all",
     .low = 0,
     .high = kMostPositions,
     .initial = "0"},
};
constexpr const char* kLongformerSamples[] = {"window=8", "window=5,dilation=3,global_tokens=2",
                                              "window=1,global_tokens=11,scale=0.4"};

std::optional<Contradiction> longformer_contradiction(const AttentionConfig& config,
                                                      const LayerDims& dims) {
  const std::vector<std::int64_t> dilations = config.integers("dilation");
  if (dilations.size() != 1 && dilations.size() != static_cast<std::size_t>(dims.n_heads)) {
    return Contradiction{"dilation", "a list of " + std::to_string(dilations.size()),
                         "one for each of n_heads = " + std::to_string(dims.n_heads)};
  }
  const std::int64_t span = (static_cast<std::int64_t>(config.integer("window")) - 1) *
                            *std::ranges::max_element(dilations);
  if (span < INT32_MAX) return {};
  return Contradiction{"window", std::to_string(config.integer("window")),
                       "(window - 1) * dilation = " + std::to_string(span) + " to be below " +
                           std::to_string(INT32_MAX)};
}

std::unique_ptr<AttentionBackend> make_longformer(const AttentionParams& params) {
  const AttentionConfig& config = params.config;
  return std::make_unique<PatternAttention>(
      params, longformer_pattern(config.integer("window"), config.integers("dilation"),
                                 config.integer("global_tokens"), length_of(params)));
}

// --- bigbird

constexpr ConfigKey kBigBirdKeys[] = {
    kScale,
    {.name = "block_size",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions of a block",
     .high = kMostPositions},
    {.name = "window_blocks",
     .type = ConfigKey::Type::kInteger,
     .doc = "blocks seen, the own one and those before it",
     .high = 65536,
     .initial = "2"},
    {.name = "global_blocks",
     .type = ConfigKey::Type::kInteger,
     .doc = "so many of the sequence's first blocks see all before them, and are seen by all",
     .low = 0,
     .high = 65536,
     .initial = "1"},
    {.name = "random_blocks",
     .type = ConfigKey::Type::kInteger,
     .doc = "blocks that a tensor names for each head and block; above 0 needs max_length",
     .low = 0,
     .high = 65536,
     .initial = "0"},
};
constexpr const char* kBigBirdSamples[] = {
    "block_size=5", "block_size=4,window_blocks=1,random_blocks=2",
    "block_size=1,window_blocks=3,global_blocks=0,random_blocks=4,scale=0.4"};
constexpr std::int64_t kMostRandom = std::int64_t{1} << 28;  // values of a tensor

// Of a sequence of max_length.
std::int64_t num_blocks(const AttentionConfig& config, const LayerDims& dims) {
  const auto block_size = static_cast<std::int64_t>(config.integer("block_size"));
  return (dims.max_length + block_size - 1) / block_size;
}

std::optional<Contradiction> bigbird_contradiction(const AttentionConfig& config,
                                                   const LayerDims& dims) {
  const auto random = static_cast<std::int64_t>(config.integer("random_blocks"));
  if (random == 0) return {};
  if (dims.max_length == 0) {
    return Contradiction{"random_blocks", std::to_string(random), "0 where max_length is 0"};
  }
  const std::int64_t rows = dims.n_heads * num_blocks(config, dims);
  if (rows <= kMostRandom / random) return {};
  return Contradiction{"random_blocks", std::to_string(random),
                       "at most " + std::to_string(kMostRandom / rows) + " for " +
                           std::to_string(rows) +
                           " blocks of n_heads = " + std::to_string(dims.n_heads) +
                           " and max_length = " + std::to_string(dims.max_length)};
}

// Blocks are named by whole numbers from -1 (none) to the row's own.
std::string refuse_random(std::span<const float> values, const OwnTensor& of) {
  const auto num_blocks = static_cast<std::size_t>(of.shape[1]);
  const auto random = static_cast<std::size_t>(of.shape[2]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t own = i / random % num_blocks;
    const float block = values[i];
    if (block >= -1.0f && block <= static_cast<float>(own) && block == std::floor(block)) continue;
    return "found " + std::to_string(block) + " at [" + std::to_string(i / random / num_blocks) +
           ", " + std::to_string(own) + ", " + std::to_string(i % random) +
           "], expected a whole number from -1 to " + std::to_string(own);
  }
  return {};
}

// For each head and block, blocks without replacement of those that are neither global nor in the
// window (Floyd's algorithm, Bentley and Floyd 1987), ascending; -1 where there are too few.
void draw_random(std::span<float> values, const OwnTensor& of, const BlockPattern& blocks,
                 std::uint64_t seed, int layer) {
  const auto num_blocks = static_cast<std::size_t>(of.shape[1]);
  const auto random = static_cast<std::size_t>(of.shape[2]);
  std::ranges::fill(values, -1.0f);
  for (std::size_t row = 0; row * random < values.size(); ++row) {
    const std::size_t own = row % num_blocks;
    const std::size_t end = own + 1 - std::min(own + 1, blocks.window_blocks);
    if (end <= blocks.global_blocks) continue;
    const std::size_t candidates = end - blocks.global_blocks;
    const DrawSource draws{.seed = seed,
                           .position = std::int64_t{layer} << 32 | static_cast<std::int64_t>(row)};
    std::set<std::size_t> drawn;
    for (std::size_t last = candidates - std::min(candidates, random); last < candidates; ++last) {
      const double uniform = draws.uniform(static_cast<std::uint32_t>(drawn.size()));
      const auto one = static_cast<std::size_t>(uniform * static_cast<double>(last + 1));
      if (!drawn.insert(one).second) drawn.insert(last);
    }
    std::ranges::transform(
        drawn, values.begin() + static_cast<std::ptrdiff_t>(row * random),
        [&](std::size_t block) { return static_cast<float>(block + blocks.global_blocks); });
  }
}

BlockPattern blocks_of(const AttentionConfig& config) {
  return {.block_size = config.integer("block_size"),
          .window_blocks = config.integer("window_blocks"),
          .global_blocks = config.integer("global_blocks")};
}

std::vector<OwnTensor> bigbird_tensors(const AttentionConfig& config, const LayerDims& dims) {
  const auto random = static_cast<std::int64_t>(config.integer("random_blocks"));
  if (random == 0) return {};
  return {{.name = "random_blocks",
           .shape = {dims.n_heads, num_blocks(config, dims), random},
           .shape_doc = "[H, ceil(max_length/block_size), random_blocks]",
           .draw = [blocks = blocks_of(config)](
                       std::span<float> values, const OwnTensor& of, std::uint64_t seed,
                       int layer) { draw_random(values, of, blocks, seed, layer); },
           .refuse = refuse_random}};
}

std::unique_ptr<AttentionBackend> make_bigbird(const AttentionParams& params) {
  const std::size_t random = params.config.integer("random_blocks");
  return std::make_unique<PatternAttention>(
      params, bigbird_pattern(
                  heads_of(params), blocks_of(params.config),
                  random == 0 ? std::span<const float>() : params.tensor("random_blocks").values(),
                  random));
}

}  // namespace

const AttentionKind kind_sparse_transformer{
    .type = "sparse_transformer",
    .doc =
        "softmax over near positions and every l-th or some of each block, l = `stride` (Child "
        "et al. 2019)",
    .state =
        "strided: keys and values of all positions, or of l where no head sees far ones; "
        "fixed: of l, and of `columns` for each block",
    .cost = "l + t/l members, or l + `columns` t/l",
    .keys = kSparseKeys,
    .contradiction = sparse_contradiction,
    .make = make_sparse,
    .samples = kSparseSamples};

const AttentionKind kind_longformer{
    .type = "longformer",
    .doc =
        "softmax over a window, which may have gaps, and the first positions (Beltagy et al. "
        "2020)",
    .state = "keys and values of `global_tokens` and the positions that the window spans: constant",
    .cost = "`window` + `global_tokens` members: constant",
    .keys = kLongformerKeys,
    .contradiction = longformer_contradiction,
    .make = make_longformer,
    .samples = kLongformerSamples};

const AttentionKind kind_bigbird{
    .type = "bigbird",
    .doc =
        "softmax over blocks: the last, the first, and some drawn at random (Zaheer et al. 2020)",
    .state = "keys and values of all positions, in pages of 64 positions that are never copied",
    .cost = "the blocks that are seen: constant",
    .keys = kBigBirdKeys,
    .tensors = bigbird_tensors,
    .contradiction = bigbird_contradiction,
    .make = make_bigbird,
    .samples = kBigBirdSamples};

}  // namespace lintel
