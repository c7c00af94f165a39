// SPDX-License-Identifier: Apache-2.0
// BigBird (Zaheer et al. 2020): softmax over blocks of positions, the last, the first, and some
// that a table names, in the causal form. With i = t div B and j = s div B
//
//   P_h(t) = {s <= t:  i - j < w,  or j < g,  or i < g,  or j in random_blocks[h, i]}
//
// where B = block_size, w = window_blocks, g = global_blocks.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/core/random.h"
#include "model/layers/attention/pattern_attention.h"

namespace lintel {
namespace {

struct BlockPattern {
  std::size_t block_size = 0;
  std::size_t window_blocks = 0;
  std::size_t global_blocks = 0;

  // The first block that is seen as one of the window and not as a global one.
  std::size_t first_of_window(std::size_t own) const {
    return std::max(own + 1 - std::min(own + 1, window_blocks), global_blocks);
  }
};

// Any position may be seen again later: a row for each.
class BigBirdPattern final : public PositionPattern {
 public:
  BigBirdPattern(std::size_t n_heads, const BlockPattern& blocks,
                 std::span<const float> random_blocks, std::size_t random)
      : blocks_(blocks), num_random_(random), random_(random_blocks.size(), -1) {
    if (random == 0) return;
    num_blocks_ = random_blocks.size() / n_heads / random;
    for (std::size_t at = 0; at < random_blocks.size(); at += random) {
      fill_random(at / random % num_blocks_, random_blocks.subspan(at, random), &random_[at]);
    }
  }

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    const std::size_t own = t / blocks_.block_size;
    if (own < blocks_.global_blocks) {
      return i == 0 ? std::optional(run_of(Kept::kRow, 0, t + 1)) : std::nullopt;
    }
    if (blocks_.global_blocks > 0 && i-- == 0) {
      return run_of(Kept::kRow, 0, blocks_.global_blocks * blocks_.block_size);
    }
    const std::span<const std::int32_t> named = random_of(h, own);
    if (i < named.size() && named[i] >= 0) {
      const std::size_t first = static_cast<std::size_t>(named[i]) * blocks_.block_size;
      return run_of(Kept::kRow, first, first + blocks_.block_size);
    }
    // After the last of those that are named comes the window, and then nothing.
    if (i > named.size() || (i > 0 && named[i - 1] < 0)) return std::nullopt;
    return run_of(Kept::kRow, blocks_.first_of_window(own) * blocks_.block_size, t + 1);
  }

  std::size_t num_rows(std::size_t n) const override { return n; }
  bool has_rows() const override { return true; }

 private:
  // Writes the blocks that a row names and does not see anyhow, each once, ascending.
  void fill_random(std::size_t own, std::span<const float> named, std::int32_t* row) const {
    std::int32_t* end = row;
    for (const float block : named) {
      if (block < static_cast<float>(blocks_.global_blocks)) continue;
      if (static_cast<std::size_t>(block) >= blocks_.first_of_window(own)) continue;
      *end++ = static_cast<std::int32_t>(block);
    }
    std::sort(row, end);
    std::fill(std::unique(row, end), end, -1);
  }

  std::span<const std::int32_t> random_of(std::size_t h, std::size_t own) const {
    if (num_random_ == 0) return {};
    assert(own < num_blocks_);
    return std::span(random_).subspan((h * num_blocks_ + own) * num_random_, num_random_);
  }

  const BlockPattern blocks_;
  const std::size_t num_random_;
  std::size_t num_blocks_ = 0;        // of a sequence of max_length, where any are random
  std::vector<std::int32_t> random_;  // [H, blocks, random], -1 after the last
};

constexpr ConfigKey kKeys[] = {
    kPatternScale,
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
constexpr const char* kSamples[] = {
    "block_size=5", "block_size=4,window_blocks=1,random_blocks=2",
    "block_size=1,window_blocks=3,global_blocks=0,random_blocks=4,scale=0.4"};
constexpr std::int64_t kMostRandom = std::int64_t{1} << 28;  // values of a tensor

// The number of blocks of a sequence of max_length.
std::int64_t num_blocks(const AttentionConfig& config, const LayerDims& dims) {
  const auto block_size = static_cast<std::int64_t>(config.integer("block_size"));
  return (dims.max_length + block_size - 1) / block_size;
}

std::optional<Contradiction> contradiction(const AttentionConfig& config, const LayerDims& dims) {
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
    const std::size_t candidates = blocks.first_of_window(own) - blocks.global_blocks;
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

std::vector<OwnTensor> tensors(const AttentionConfig& config, const LayerDims& dims) {
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

std::unique_ptr<AttentionBackend> make(const AttentionParams& params) {
  const std::size_t random = params.config.integer("random_blocks");
  std::span<const float> random_blocks;
  if (random > 0) random_blocks = params.tensor("random_blocks").values();
  return std::make_unique<PatternAttention>(
      params, std::make_unique<BigBirdPattern>(static_cast<std::size_t>(params.dims.n_heads),
                                               blocks_of(params.config), random_blocks, random));
}

}  // namespace

const AttentionKind kind_bigbird{
    .type = "bigbird",
    .doc = "softmax over blocks: the last, the first, some at random (Zaheer et al. 2020)",
    .state = "keys and values of all positions, in pages of 64 positions that are never copied",
    .cost = "reads the blocks that are seen: constant",
    .keys = kKeys,
    .tensors = tensors,
    .contradiction = contradiction,
    .make = make,
    .samples = kSamples};

}  // namespace lintel
