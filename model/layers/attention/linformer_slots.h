// What both modes of Linformer share: the projections of positions to slots, and the shapes.
#pragma once

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/linformer_kernels.h"
#include "model/layers/attention/common/softmax_kernels.h"

namespace lintel {

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
  // Of position t (of a block in mode blocks) and those after it: [N - t, rank].
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

}  // namespace lintel
