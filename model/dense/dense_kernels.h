// The matrix products behind Dense: one packed layout, and kernels for each instruction set.
//
// Every output is one chain of multiply-adds over the inputs, in order, from zero: which tile of
// rows or columns it is computed in changes the speed, not the bits. int8 sums are exact integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "model/base/tensor.h"
#include "model/dense/prefetch_list.h"
#include "model/dense/weight_type.h"

namespace lintel {

// Inputs come in cells of four bytes: one f32, two bf16 or four int8, so that one broadcast feeds
// one instruction of every type.
std::size_t inputs_per_cell(WeightType type);
std::size_t num_cells(WeightType type, std::size_t in_features);

// Columns of W^T that lie side by side: four AVX-512 registers.
inline constexpr std::size_t kGroupWidth = 64;

// W and b as the kernels read them.
struct PackedWeights {
  // weight: [out_features, in_features]; bias: [out_features]. int8 is symmetric, with one scale
  // for each output.
  PackedWeights(WeightType type, std::span<const float> weight, std::span<const float> bias,
                std::size_t in_features, std::size_t out_features);

  std::size_t num_groups() const { return (out_features + kGroupWidth - 1) / kGroupWidth; }
  const std::uint32_t* group(std::size_t g) const {
    return cells.get() + g * row_cells * kGroupWidth;
  }
  std::size_t bytes() const;

  WeightType type;
  std::size_t in_features;
  std::size_t out_features;
  std::size_t row_cells;              // num_cells(type, in_features)
  AlignedArray<std::uint32_t> cells;  // [groups, row_cells, kGroupWidth], padded with zeros
  AlignedArray<float> bias;           // [groups * kGroupWidth], padded, as those below
  AlignedArray<float> scales;         // int8: what a unit of each output's weights is worth
  AlignedArray<std::int32_t> sums;    // int8: the sum of each output's weights
};

// y = x W^T + b, or y += that.
struct Product {
  const PackedWeights* weights = nullptr;
  const std::uint32_t* x = nullptr;  // [rows, row_cells], no gaps; int8: unsigned bytes
  const float* x_scales = nullptr;   // [rows]; int8
  std::int32_t x_zero = 0;           // int8: the byte that stands for 0
  std::size_t rows = 0;
  float* y = nullptr;  // [rows, out_features]
  std::size_t y_stride = 0;
  bool relu = false;
  bool add = false;                  // after the activation
  PrefetchList* prefetch = nullptr;  // not null: what it has is asked for, as far as time allows
};

// The fastest kernels of this machine for the type, or where `portable` those that Highway makes.
void multiply(const Product& product, bool portable = false);

// What follows a product: y (or what is added to it) from the sums of `raw`, [rows, out_features]
// without gaps, int32 for int8 and f32 else. For sums that others have computed.
void finish_sums(const Product& product, const std::uint32_t* raw);

// Whether there are instructions for the type alone, and multiply() takes them.
bool has_special_tiles(WeightType type);

// Which kernels multiply() takes for a type: "avx512_vnni", "highway (AVX2)".
std::string multiply_description(WeightType type);

}  // namespace lintel
