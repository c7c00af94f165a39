// SPDX-License-Identifier: Apache-2.0
// DenseInput: rows of floats in the form in which a product of one weight type reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/core/tensor.h"
#include "model/ops/block_product.h"
#include "model/ops/weight_type.h"

namespace lintel {

// f32 as they are, rounded to bf16, or quantised to bytes with a scale for each row (int8), each
// 128 values (int8 groups) or each 32 (blocks, which keep the floats, too). One thread's. Write
// rows into values(), then prepare() them; what a row becomes depends on that row alone.
class DenseInput {
 public:
  // The assumption of int8 about the values. kNonNegative uses the whole byte for them: one more
  // bit.
  enum class Range { kSigned, kNonNegative };

  DenseInput() = default;
  DenseInput(WeightType type, std::size_t max_rows, std::size_t cols, Range range = Range::kSigned);

  WeightType type() const { return type_; }
  std::size_t cols() const { return cols_; }
  std::size_t bytes() const;  // of memory
  // [max_rows, cols], with gaps between the rows.
  MatrixView<float> values() { return {values_.get(), max_rows_, cols_, value_stride_}; }

  // REQUIRES: first + count <= max_rows.
  void prepare(std::size_t first, std::size_t count);
  // Row r from values that lie elsewhere; values() may or may not hold them afterwards, but for
  // blocks, where they do.
  void assign(std::size_t r, std::span<const float> values);

  // For who writes rows in the form in which they are read: [max_rows, cols], 2 * stride() apart.
  // REQUIRES: bf16.
  std::uint16_t* bf16() { return reinterpret_cast<std::uint16_t*>(cells_.get()); }

  // For the kernels: cells of rows (as Product::x), how far apart these are, the scale of each row,
  // the byte for 0.
  const std::uint32_t* cells() const { return cells_of(type_); }
  std::size_t stride() const { return stride_of(type_); }
  // The same for products of f32, which the input of blocks serves, too.
  const std::uint32_t* cells_of(WeightType type) const;
  std::size_t stride_of(WeightType type) const {
    return type == WeightType::kF32 ? value_stride_ : stride_;
  }
  // REQUIRES: blocks or int8 groups.
  BlockInput blocks() const;
  const float* scales() const { return scales_.get(); }
  std::int32_t zero() const { return range_ == Range::kSigned ? 128 : 0; }

 private:
  void convert(std::size_t r, std::span<const float> values);

  WeightType type_ = WeightType::kF32;
  Range range_ = Range::kSigned;
  std::size_t max_rows_ = 0;
  std::size_t cols_ = 0;
  std::size_t stride_ = 0;             // of cells
  std::size_t value_stride_ = 0;       // of values
  AlignedArray<float> values_;         // [max_rows, value_stride]
  AlignedArray<std::uint32_t> cells_;  // [max_rows in whole tiles, stride]; none for f32
  AlignedArray<float> scales_;         // int8: [max_rows]; groups: [max_rows, group_stride]
  AlignedArray<std::int32_t> sums_;    // groups: [max_rows, 2 group_stride]
  // Sums of each 128 values, for groups of 128 only: [max_rows, group_stride / 4, rounded up].
  AlignedArray<std::int32_t> group_sums_;
  std::size_t group_stride_ = 0;  // groups of 32 values of a row
};

}  // namespace lintel
