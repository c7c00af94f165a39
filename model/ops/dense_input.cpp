// SPDX-License-Identifier: Apache-2.0
#include "model/ops/dense_input.h"

#include <cassert>
#include <cstring>

#include "model/ops/dense_kernels.h"
#include "model/ops/quantize.h"

namespace lintel {

DenseInput::DenseInput(WeightType type, std::size_t max_rows, std::size_t cols, Range range)
    : type_(input_type_of(type)),
      range_(range),
      max_rows_(max_rows),
      cols_(cols),
      stride_(input_stride(num_cells(type_, cols))),
      value_stride_(input_stride(cols)),
      values_(make_aligned<float>(max_rows * value_stride_)) {
  if (type == WeightType::kF32) return;
  const std::size_t rows = (max_rows + kTileRows - 1) / kTileRows * kTileRows;
  cells_ = make_aligned<std::uint32_t>(rows * stride_);
  if (type == WeightType::kInt8) scales_ = make_aligned<float>(max_rows);
  if (type_ != WeightType::kBlocks && type_ != WeightType::kInt8Groups) return;
  group_stride_ = (cols + BlockMatrix::kSpan - 1) / BlockMatrix::kSpan;
  scales_ = make_aligned<float>(max_rows * group_stride_);
  sums_ = make_aligned<std::int32_t>(max_rows * group_stride_ * 2);
  if (type_ == WeightType::kInt8Groups) {
    group_sums_ = make_aligned<std::int32_t>(max_rows * ((group_stride_ + 3) / 4));
  }
}

std::size_t DenseInput::bytes() const {
  std::size_t numbers = max_rows_ * value_stride_;
  if (cells_ != nullptr) {
    numbers += (max_rows_ + kTileRows - 1) / kTileRows * kTileRows * stride_ + max_rows_;
  }
  if (sums_ != nullptr) numbers += 4 * max_rows_ * group_stride_;
  return numbers * sizeof(float);
}

const std::uint32_t* DenseInput::cells_of(WeightType type) const {
  // A cell of f32 is the float itself.
  return type == WeightType::kF32 ? reinterpret_cast<const std::uint32_t*>(values_.get())
                                  : cells_.get();
}

BlockInput DenseInput::blocks() const {
  assert(type_ == WeightType::kBlocks || type_ == WeightType::kInt8Groups);
  return {.cells = cells_.get(),
          .cell_stride = stride_,
          .scales = scales_.get(),
          .sums = sums_.get(),
          .group_sums = group_sums_.get(),
          .scale_stride = group_stride_};
}

void DenseInput::prepare(std::size_t first, std::size_t count) {
  assert(first + count <= max_rows_);
  if (type_ == WeightType::kF32) return;
  for (std::size_t r = first; r < first + count; ++r) convert(r, values().row(r));
}

void DenseInput::assign(std::size_t r, std::span<const float> values) {
  assert(values.size() == cols_);
  if (type_ == WeightType::kF32 || type_ == WeightType::kBlocks) {
    std::memcpy(values_.get() + r * value_stride_, values.data(), values.size_bytes());
  }
  if (type_ != WeightType::kF32) convert(r, values);
}

void DenseInput::convert(std::size_t r, std::span<const float> values) {
  std::uint32_t* cells = cells_.get() + r * stride_;
  if (type_ == WeightType::kBf16) {
    round_to_bf16(values, cells);
  } else if (type_ == WeightType::kBlocks) {
    quantize_groups(values, cells, scales_.get() + r * group_stride_,
                    sums_.get() + r * group_stride_ * 2);
  } else if (type_ == WeightType::kInt8Groups) {
    quantize_large_groups(values, cells, scales_.get() + r * group_stride_,
                          sums_.get() + r * group_stride_ * 2,
                          group_sums_.get() + r * ((group_stride_ + 3) / 4));
  } else if (range_ == Range::kSigned) {
    scales_[r] = quantize_signed(values, cells);
  } else {
    scales_[r] = quantize_non_negative(values, cells);
  }
}

}  // namespace lintel
