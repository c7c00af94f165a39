// SPDX-License-Identifier: Apache-2.0
// PackedWeights: W and b as every kernel of ours reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "model/core/parallel.h"
#include "model/core/tensor.h"
#include "model/ops/weight_type.h"

namespace lintel {

// Inputs come in cells of four bytes: one f32, two bf16 or four int8, so that one broadcast feeds
// one instruction of every type.
std::size_t inputs_per_cell(WeightType type);
std::size_t num_cells(WeightType type, std::size_t in_features);

// The size of a tile of AMX: 16 rows of 64 bytes. Inputs and weights of bf16 and int8 are padded to
// it with zeros, which add nothing, so that no tile is partial.
inline constexpr std::size_t kTileRows = 16;
inline constexpr std::size_t kTileCells = 16;

// Cells from one input row to the next: whole cache lines, an odd number of them. With rows of 4
// KiB the same columns of all rows would compete for one set of the first cache.
std::size_t input_stride(std::size_t row_cells);

// Columns of W^T that lie side by side: four AVX-512 registers.
inline constexpr std::size_t kGroupWidth = 64;

// Reads rows first .. first + rows.rows() - 1 of a matrix that is nowhere whole in f32. Threads:
// any, for large matrices.
using ReadWeightRows = std::function<void(std::size_t first, MatrixView<float> rows)>;

// Threads that pack a matrix: one for each million weights, core and group at most, and no more
// than eight, each of which holds kGroupWidth rows in f32.
std::size_t packing_threads(std::size_t in_features, std::size_t out_features);
// run_in_parallel of the groups of a matrix on as many.
void for_each_group(std::size_t in_features, std::size_t out_features,
                    const std::function<void(WorkParts& groups)>& pack);

// W and b as the kernels read them.
struct PackedWeights {
  // weight: [out_features, in_features]; bias: [out_features]. int8 is symmetric, with one scale
  // for each output.
  PackedWeights(WeightType type, std::span<const float> weight, std::span<const float> bias,
                std::size_t in_features, std::size_t out_features);
  // The same of rows that are read kGroupWidth at a time.
  PackedWeights(WeightType type, const ReadWeightRows& read, std::span<const float> bias,
                std::size_t in_features, std::size_t out_features);

  std::size_t num_groups() const { return (out_features + kGroupWidth - 1) / kGroupWidth; }
  const std::uint32_t* group(std::size_t g) const {
    return cells.get() + g * group_cells * kGroupWidth;
  }
  // The weights of output n, as they are held. REQUIRES: it has its cells. out: [in_features].
  void row(std::size_t n, std::span<float> out) const;
  std::size_t bytes() const;
  // The value of bytes() for such weights.
  static std::size_t bytes_of(WeightType type, std::size_t in_features, std::size_t out_features);
  // For who multiplies by another copy: what is left are the vectors of each output.
  void drop_cells() { cells.reset(); }

  WeightType type;
  std::size_t in_features;
  std::size_t out_features;
  std::size_t row_cells;              // num_cells(type, in_features)
  std::size_t group_cells;            // the same in whole tiles; of f32 row_cells
  AlignedArray<std::uint32_t> cells;  // [groups, group_cells, kGroupWidth], padded with zeros
  AlignedArray<float> bias;           // [groups * kGroupWidth], padded, as those below
  AlignedArray<float> scales;         // int8: what a unit of each output's weights is worth
  AlignedArray<std::int32_t> sums;    // int8: the sum of each output's weights

 private:
  PackedWeights(WeightType type, std::span<const float> bias, std::size_t in_features,
                std::size_t out_features);
  // Rows of one group, from its first on.
  void pack_group(std::size_t first, MatrixView<const float> rows);
};

}  // namespace lintel
