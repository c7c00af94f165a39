// SPDX-License-Identifier: Apache-2.0
#include "model/ops/packed_weights.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "model/core/float_formats.h"
#include "model/ops/quantize.h"

namespace lintel {
namespace {

// A row's cells. cells: num_cells(type, row.size()) of them.
void convert_row(WeightType type, std::span<const float> row, float scale,
                 std::span<std::uint32_t> cells) {
  switch (type) {
    case WeightType::kF32:
      std::memcpy(cells.data(), row.data(), row.size_bytes());
      return;
    case WeightType::kBf16:
      return round_to_bf16(row, cells.data());
    case WeightType::kInt8:
      return round_to_levels(row, scale, cells.data());
    default:
      assert(false);  // of a BlockMatrix
      return;
  }
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

std::size_t groups_of(std::size_t out_features) {
  return (out_features + kGroupWidth - 1) / kGroupWidth;
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

std::size_t packing_threads(std::size_t in_features, std::size_t out_features) {
  constexpr std::size_t kThreadWeights = std::size_t{1} << 20, kMost = 8;
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::min({kMost, cores, 1 + in_features * out_features / kThreadWeights,
                   std::max<std::size_t>(groups_of(out_features), 1)});
}

void for_each_group(std::size_t in_features, std::size_t out_features,
                    const std::function<void(WorkParts& groups)>& pack) {
  run_in_parallel(groups_of(out_features), packing_threads(in_features, out_features), pack);
}

PackedWeights::PackedWeights(WeightType weight_type, std::span<const float> bias_values,
                             std::size_t in, std::size_t out)
    : type(weight_type),
      in_features(in),
      out_features(out),
      row_cells(num_cells(type, in)),
      group_cells(padded_cells(type, in)),
      cells(make_untouched<std::uint32_t>(num_groups() * group_cells * kGroupWidth)),
      bias(make_untouched<float>(num_groups() * kGroupWidth)) {
  assert(bias_values.size() == out);
  std::ranges::copy(bias_values, bias.get());
  if (type != WeightType::kInt8) return;
  scales = make_untouched<float>(num_groups() * kGroupWidth);
  sums = make_untouched<std::int32_t>(num_groups() * kGroupWidth);
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
  for_each_group(in, out, [&](WorkParts& groups) {
    Matrix rows(std::min(kGroupWidth, out), in);
    while (const auto number = groups.next()) {
      const std::size_t first = *number * kGroupWidth;
      const MatrixView<float> group = rows.view().rows_from(0, std::min(kGroupWidth, out - first));
      read(first, group);
      pack_group(first, group);
    }
  });
}

void PackedWeights::pack_group(std::size_t first, MatrixView<const float> rows) {
  std::uint32_t* const group_begin = cells.get() + first / kGroupWidth * group_cells * kGroupWidth;
  if (type == WeightType::kInt8) {
    for (std::size_t n = 0; n < rows.rows(); ++n) scales[first + n] = scale_of(rows.row(n));
  }
  std::vector<std::uint32_t> converted(rows.rows() * row_cells);
  for (std::size_t n = 0; n < rows.rows(); ++n) {
    const float scale = type == WeightType::kInt8 ? scales[first + n] : 1.0f;
    convert_row(type, rows.row(n), scale, std::span(converted).subspan(n * row_cells, row_cells));
  }
  // A few cells of all columns of a group, then the next few: what is written stays in the cache
  // until its lines are full.
  constexpr std::size_t kBlockCells = 16;
  for (std::size_t block = 0; block < row_cells; block += kBlockCells) {
    const std::size_t end = std::min(block + kBlockCells, row_cells);
    for (std::size_t n = 0; n < rows.rows(); ++n) {
      const std::uint32_t* const row = converted.data() + n * row_cells;
      std::uint32_t* const column = group_begin + n;
      for (std::size_t c = block; c < end; ++c) column[c * kGroupWidth] = row[c];
    }
  }
  if (type != WeightType::kInt8) return;
  const auto* const levels = reinterpret_cast<const std::int8_t*>(converted.data());
  for (std::size_t n = 0; n < rows.rows(); ++n) {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < 4 * row_cells; ++i) sum += levels[n * 4 * row_cells + i];
    sums[first + n] = sum;
  }
}

void PackedWeights::row(std::size_t n, std::span<float> out) const {
  assert(cells != nullptr && out.size() == in_features);
  const std::uint32_t* const column = group(n / kGroupWidth) + n % kGroupWidth;
  const std::size_t each = inputs_per_cell(type);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t cell = column[i / each * kGroupWidth];
    if (type == WeightType::kF32) {
      out[i] = std::bit_cast<float>(cell);
    } else if (type == WeightType::kBf16) {
      out[i] = bf16_to_f32(static_cast<std::uint16_t>(cell >> (16 * (i % 2))));
    } else {
      out[i] = static_cast<float>(static_cast<std::int8_t>(cell >> (8 * (i % 4)))) * scales[n];
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
