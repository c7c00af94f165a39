// SPDX-License-Identifier: Apache-2.0
// LowRank: y += scaling B (A x), beside a product of the model's own weights. SIMD by Highway; the
// same rules as model/core/kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/core/tensor.h"

namespace lintel {

// B, packed: what of few numbers makes an output row.
struct LowRankOutput {
  // Columns of a group, which lie side by side for each of the numbers.
  static constexpr std::size_t kGroupWidth = 64;

  LowRankOutput() = default;
  LowRankOutput(std::size_t out_features, std::size_t of_rank);

  void assign(std::span<const float> b);  // [out, rank]
  std::size_t num_groups() const { return (out + kGroupWidth - 1) / kGroupWidth; }
  static std::size_t bytes_of(std::size_t out_features, std::size_t of_rank);

  std::span<const float> values() const { return {cells.get(), num_groups() * rank * kGroupWidth}; }

  std::size_t out = 0;
  std::size_t rank = 0;
  AlignedArray<float> cells;  // [groups, rank, kGroupWidth], padded with zeros
};

// A, packed.
struct LowRankInput {
  static constexpr std::size_t kBlockRanks = 8;  // side by side for each input

  LowRankInput() = default;
  LowRankInput(std::size_t in_features, std::size_t of_rank);

  void assign(std::span<const float> a);  // [rank, in]
  std::size_t num_blocks() const { return (rank + kBlockRanks - 1) / kBlockRanks; }
  static std::size_t bytes_of(std::size_t in_features, std::size_t of_rank);

  std::span<const float> values() const { return {cells.get(), num_blocks() * in * kBlockRanks}; }

  std::size_t in = 0;
  std::size_t rank = 0;
  AlignedArray<float> cells;  // [blocks, in, kBlockRanks], padded with zeros
};

// Both of a module. A is two chains of multiply-adds for each number, over the even and the odd
// inputs in order, and their sum; B one chain over these numbers: which rows are computed together
// changes the speed, not the bits.
struct LowRank {
  LowRankInput a;
  LowRankOutput b;
  float scaling = 0.0f;

  // y_row += scaling B (A x_row) for each of `rows`. x: [.., in]; y: [.., out].
  void add(std::span<const std::uint32_t> rows, MatrixView<const float> x,
           MatrixView<float> y) const;
};

// y += scaling B h. h: [rank]; y: [out].
void add_low_rank(const LowRankOutput& b, float scaling, std::span<const float> h,
                  std::span<float> y);

}  // namespace lintel
