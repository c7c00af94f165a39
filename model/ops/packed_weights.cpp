// SPDX-License-Identifier: Apache-2.0
#include "model/ops/packed_weights.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

#include "model/core/float_formats.h"

namespace lintel {
namespace {

std::uint32_t pack_cell(WeightType type, std::span<const float> row, std::size_t first,
                        float scale) {
  std::uint32_t cell = 0;
  const std::size_t count = inputs_per_cell(type);
  for (std::size_t i = 0; i < count && first + i < row.size(); ++i) {
    const float value = row[first + i];
    switch (type) {
      case WeightType::kF32:
        return std::bit_cast<std::uint32_t>(value);
      case WeightType::kBf16:
        cell |= std::uint32_t{f32_to_bf16(value)} << (16 * i);
        break;
      case WeightType::kInt8: {
        const auto level = static_cast<std::int8_t>(std::lrint(value / scale));
        cell |= std::uint32_t{static_cast<std::uint8_t>(level)} << (8 * i);
        break;
      }
    }
  }
  return cell;
}

std::size_t up_to(std::size_t n, std::size_t block) { return (n + block - 1) / block * block; }

std::size_t padded_cells(WeightType type, std::size_t in_features) {
  const std::size_t cells = num_cells(type, in_features);
  return type == WeightType::kF32 ? cells : up_to(cells, kTileCells);
}

// Symmetric: the largest weight of an output is 127 units.
float scale_of(std::span<const float> row) {
  float largest = 0.0f;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  return largest > 0.0f ? largest / 127.0f : 1.0f;
}

}  // namespace

std::size_t inputs_per_cell(WeightType type) {
  return type == WeightType::kF32 ? 1 : type == WeightType::kBf16 ? 2 : 4;
}

std::size_t num_cells(WeightType type, std::size_t in_features) {
  const std::size_t each = inputs_per_cell(type);
  return (in_features + each - 1) / each;
}

std::size_t input_stride(std::size_t row_cells) {
  return (up_to(row_cells, kTileCells) / kTileCells | 1) * kTileCells;
}

PackedWeights::PackedWeights(WeightType weight_type, std::span<const float> bias_values,
                             std::size_t in, std::size_t out)
    : type(weight_type),
      in_features(in),
      out_features(out),
      row_cells(num_cells(type, in)),
      group_cells(padded_cells(type, in)),
      cells(make_aligned<std::uint32_t>(num_groups() * group_cells * kGroupWidth)),
      bias(make_aligned<float>(num_groups() * kGroupWidth)) {
  assert(bias_values.size() == out);
  std::ranges::copy(bias_values, bias.get());
  if (type != WeightType::kInt8) return;
  scales = make_aligned<float>(num_groups() * kGroupWidth);
  sums = make_aligned<std::int32_t>(num_groups() * kGroupWidth);
}

PackedWeights::PackedWeights(WeightType weight_type, std::span<const float> weight,
                             std::span<const float> bias_values, std::size_t in, std::size_t out)
    : PackedWeights(weight_type, bias_values, in, out) {
  assert(weight.size() == in * out);
  for (std::size_t first = 0; first < out; first += kGroupWidth) {
    pack_group(first, {weight.data() + first * in, std::min(kGroupWidth, out - first), in, in});
  }
}

PackedWeights::PackedWeights(WeightType weight_type, const ReadWeightRows& read,
                             std::span<const float> bias_values, std::size_t in, std::size_t out)
    : PackedWeights(weight_type, bias_values, in, out) {
  Matrix rows(std::min(kGroupWidth, out), in);
  for (std::size_t first = 0; first < out; first += kGroupWidth) {
    const MatrixView<float> group = rows.view().rows_from(0, std::min(kGroupWidth, out - first));
    read(first, group);
    pack_group(first, group);
  }
}

void PackedWeights::pack_group(std::size_t first, MatrixView<const float> rows) {
  std::uint32_t* const group_begin = cells.get() + first / kGroupWidth * group_cells * kGroupWidth;
  if (type == WeightType::kInt8) {
    for (std::size_t n = 0; n < rows.rows(); ++n) scales[first + n] = scale_of(rows.row(n));
  }
  // A few cells of all columns of a group, then the next few: what is written stays in the cache
  // until its lines are full.
  constexpr std::size_t kBlockCells = 16;
  const std::size_t each = inputs_per_cell(type);
  for (std::size_t block = 0; block < row_cells; block += kBlockCells) {
    const std::size_t end = std::min(block + kBlockCells, row_cells);
    for (std::size_t n = 0; n < rows.rows(); ++n) {
      const float scale = type == WeightType::kInt8 ? scales[first + n] : 1.0f;
      const std::span<const float> row = rows.row(n);
      std::uint32_t* const column = group_begin + n;
      if (type == WeightType::kF32) {  // without a question for each value
        for (std::size_t c = block; c < end; ++c) {
          column[c * kGroupWidth] = std::bit_cast<std::uint32_t>(row[c]);
        }
        continue;
      }
      for (std::size_t c = block; c < end; ++c) {
        column[c * kGroupWidth] = pack_cell(type, row, c * each, scale);
      }
    }
  }
  if (type != WeightType::kInt8) return;
  for (std::size_t n = 0; n < rows.rows(); ++n) {
    for (std::size_t c = 0; c < row_cells; ++c) {
      for (int i = 0; i < 4; ++i) {
        sums[first + n] += static_cast<std::int8_t>(group_begin[c * kGroupWidth + n] >> (8 * i));
      }
    }
  }
}

std::size_t PackedWeights::bytes() const {
  const std::size_t all = bytes_of(type, in_features, out_features);
  return cells != nullptr ? all : all - num_groups() * kGroupWidth * group_cells * 4;
}

std::size_t PackedWeights::bytes_of(WeightType type, std::size_t in_features,
                                    std::size_t out_features) {
  const std::size_t each_column =
      padded_cells(type, in_features) + (type == WeightType::kInt8 ? 3 : 1);
  return up_to(out_features, kGroupWidth) * each_column * 4;
}

}  // namespace lintel
