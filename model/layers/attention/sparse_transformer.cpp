// SPDX-License-Identifier: Apache-2.0
// Sparse Transformer (Child et al. 2019, "Generating Long Sequences with Sparse Transformers"):
// softmax over near positions and a few far ones, in the strided and the fixed pattern of
// section 4.3.
//
//   strided   local: t - s < l             far: (t - s) mod l = 0
//   fixed     local: s div l = t div l     far: l - (g+1) c <= s mod l < l - g c,  g = h mod V
//
// with l = stride, c = columns, V = column_groups. t itself is always seen.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "model/layers/attention/pattern_attention.h"

namespace lintel {
namespace {

// The part of its pattern that a head sees.
struct SparseParts {
  explicit SparseParts(const std::string& part)
      : local(part != "far"), far(part != "local"), by_head(part == "by_head") {}

  bool is_local(std::size_t h) const { return local && (!by_head || h % 2 == 0); }
  bool is_far(std::size_t h) const { return far && (!by_head || h % 2 == 1); }
  bool any_far(std::size_t n_heads) const { return far && (!by_head || n_heads > 1); }

  bool local;
  bool far;
  bool by_head;
};

// Old positions are seen again and again: a row for each of them. Without far heads, the last
// `stride` will do.
class StridedPattern final : public PositionPattern {
 public:
  StridedPattern(std::size_t n_heads, SparseParts parts, std::size_t stride, std::size_t max_length)
      : parts_(parts),
        stride_(stride),
        has_rows_(parts.any_far(n_heads)),
        num_recent_(has_rows_ ? 0 : at_most(stride, max_length)) {}

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    PatternParts seen;
    const std::size_t strides = t / stride_;
    if (parts_.is_far(h)) {
      // t itself is one of the local ones.
      const std::size_t count = parts_.is_local(h) ? strides : strides + 1;
      seen.add({.first = t % stride_, .period = stride_, .count = count});
    }
    if (parts_.is_local(h)) {
      const Kept kept = has_rows_ ? Kept::kRow : Kept::kRecent;
      seen.add(run_of(kept, t + 1 - std::min(t + 1, stride_), t + 1));
    }
    return seen.part(i);
  }

  std::size_t num_recent() const override { return num_recent_; }
  std::size_t recent_from(std::size_t n) const override { return n - std::min(n, num_recent_); }
  std::size_t num_rows(std::size_t n) const override { return has_rows_ ? n : 0; }
  bool has_rows() const override { return has_rows_; }

 private:
  const SparseParts parts_;
  const std::size_t stride_;
  const bool has_rows_;
  const std::size_t num_recent_;
};

// The last block is kept whole; when the next one begins, its columns become rows. Each head has
// those of its own group.
class FixedPattern final : public PositionPattern {
 public:
  FixedPattern(std::size_t n_heads, SparseParts parts, std::size_t stride, std::size_t columns,
               std::size_t column_groups, std::size_t max_length)
      : parts_(parts),
        stride_(stride),
        columns_(columns),
        column_groups_(column_groups),
        has_rows_(parts.any_far(n_heads)),
        num_recent_(at_most(stride, max_length)) {}

  std::optional<PositionRuns> part(std::size_t h, std::size_t t, std::size_t i) const override {
    PatternParts seen;
    const std::size_t block = t / stride_ * stride_;
    if (parts_.is_far(h)) {
      seen.add(
          {.first = first_column(h), .length = columns_, .period = stride_, .count = t / stride_});
    }
    if (parts_.is_local(h)) {
      seen.add(run_of(Kept::kRecent, block, t + 1));
    } else {
      // The own block's columns, and t itself.
      const std::size_t column = std::min(block + first_column(h), t);
      const std::size_t end = std::min(block + first_column(h) + columns_, t);
      seen.add(run_of(Kept::kRecent, column, end));
      seen.add(run_of(Kept::kRecent, t, t + 1));
    }
    return seen.part(i);
  }

  std::size_t num_recent() const override { return num_recent_; }
  std::size_t recent_from(std::size_t n) const override {
    return n == 0 ? 0 : (n - 1) / stride_ * stride_;
  }
  std::size_t num_rows(std::size_t n) const override {
    return n == 0 || !has_rows_ ? 0 : (n - 1) / stride_ * columns_;
  }
  bool has_rows() const override { return has_rows_; }
  std::size_t position_of(std::size_t h, std::size_t row) const override {
    return row / columns_ * stride_ + first_column(h) + row % columns_;
  }
  std::size_t row_of(std::size_t h, std::size_t s) const override {
    return s / stride_ * columns_ + s % stride_ - first_column(h);
  }

 private:
  // The first column of a block that the head sees.
  std::size_t first_column(std::size_t h) const {
    return stride_ - (h % column_groups_ + 1) * columns_;
  }

  const SparseParts parts_;
  const std::size_t stride_;
  const std::size_t columns_;
  const std::size_t column_groups_;
  const bool has_rows_;
  const std::size_t num_recent_;
};

constexpr ConfigKey kKeys[] = {
    kPatternScale,
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
constexpr const char* kSamples[] = {"pattern=fixed,stride=8",
                                    "pattern=fixed,stride=8,columns=2,column_groups=3",
                                    "pattern=fixed,stride=6,columns=6,part=far",
                                    "pattern=fixed,stride=10,part=by_head",
                                    "pattern=fixed,stride=12,part=local",
                                    "pattern=strided,stride=6",
                                    "pattern=strided,stride=9,part=local",
                                    "pattern=strided,stride=5,part=far,scale=0.3",
                                    "pattern=strided,stride=7,part=by_head"};

std::optional<Contradiction> contradiction(const AttentionConfig& config,
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

std::unique_ptr<AttentionBackend> make(const AttentionParams& params) {
  const AttentionConfig& config = params.config;
  const SparseParts parts(config.choice("part"));
  const std::size_t stride = config.integer("stride");
  const auto n_heads = static_cast<std::size_t>(params.dims.n_heads);
  const auto max_length = static_cast<std::size_t>(params.dims.max_length);
  std::unique_ptr<PositionPattern> pattern;
  if (config.choice("pattern") == "strided") {
    pattern = std::make_unique<StridedPattern>(n_heads, parts, stride, max_length);
  } else {
    pattern = std::make_unique<FixedPattern>(n_heads, parts, stride, config.integer("columns"),
                                             config.integer("column_groups"), max_length);
  }
  return std::make_unique<PatternAttention>(params, std::move(pattern));
}

}  // namespace

const AttentionKind kind_sparse_transformer{
    .type = "sparse_transformer",
    .doc = "softmax over near positions and a few far ones, by l = `stride` (Child et al. 2019)",
    .state =
        "keys and values; strided: of all positions, or of l where no head sees far ones; fixed: "
        "of l, and of `columns` for each block",
    .cost = "reads l + t/l of them, or l + `columns` t/l",
    .keys = kKeys,
    .contradiction = contradiction,
    .make = make,
    .samples = kSamples};

}  // namespace lintel
