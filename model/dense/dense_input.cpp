#include "model/dense/dense_input.h"

#include <cassert>
#include <cstring>

#include "model/dense/dense_kernels.h"
#include "model/dense/quantize.h"

namespace lintel {

DenseInput::DenseInput(WeightType type, std::size_t max_rows, std::size_t cols, Range range)
    : type_(type),
      range_(range),
      cols_(cols),
      row_cells_(num_cells(type, cols)),
      values_(max_rows, cols) {
  if (type == WeightType::kF32) return;
  cells_ = make_aligned<std::uint32_t>(max_rows * row_cells_);
  if (type == WeightType::kInt8) scales_ = make_aligned<float>(max_rows);
}

const std::uint32_t* DenseInput::cells() const {
  // A cell of f32 is the float itself.
  return type_ == WeightType::kF32 ? reinterpret_cast<const std::uint32_t*>(values_.view().data())
                                   : cells_.get();
}

void DenseInput::prepare(std::size_t first, std::size_t count) {
  assert(first + count <= values_.rows());
  if (type_ == WeightType::kF32) return;
  for (std::size_t r = first; r < first + count; ++r) convert(r, values_.row(r));
}

void DenseInput::assign(std::size_t r, std::span<const float> values) {
  assert(values.size() == cols_);
  if (type_ == WeightType::kF32) {
    std::memcpy(values_.row(r).data(), values.data(), values.size_bytes());
  } else {
    convert(r, values);
  }
}

void DenseInput::convert(std::size_t r, std::span<const float> values) {
  std::uint32_t* cells = cells_.get() + r * row_cells_;
  if (type_ == WeightType::kBf16) {
    round_to_bf16(values, cells);
  } else if (range_ == Range::kSigned) {
    scales_[r] = quantize_signed(values, cells);
  } else {
    scales_[r] = quantize_non_negative(values, cells);
  }
}

}  // namespace lintel
