// SPDX-License-Identifier: Apache-2.0
#include "model/ops/library_product.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/core/tensor.h"
#include "model/ops/tile_scope.h"

namespace lintel {
namespace {

// The largest block must be of as many rows: else our own kernels are faster in batches.
constexpr std::size_t kLeastBlock = 16;

// Memory of a thread that grows to its high-water mark.
class Buffer {
 public:
  std::uint32_t* of(std::size_t count) {
    if (count > size_) {
      memory_ = make_aligned<std::uint32_t>(count);
      size_ = count;
    }
    return memory_.get();
  }

 private:
  AlignedArray<std::uint32_t> memory_;
  std::size_t size_ = 0;
};

}  // namespace

std::unique_ptr<LibraryProduct> LibraryProduct::make(const ProductLibrary& library,
                                                     const PackedWeights& weights,
                                                     std::string& why_not) {
  const ProductShape shape{weights.type, weights.row_cells, weights.out_features};
  std::unique_ptr<LibraryMatrix> matrix = library.new_matrix(shape);
  if (matrix == nullptr) {
    why_not = "it has no such product here";
    return nullptr;
  }
  std::vector<std::size_t> row_counts = library.proven_rows(shape, *matrix);
  if (row_counts.empty() || row_counts.back() < kLeastBlock) {
    why_not = "its bits depend on the number of rows";
    return nullptr;
  }
  matrix->assign(weights);
  std::unique_ptr<LibraryProduct> product(
      new LibraryProduct(library, weights, std::move(matrix), std::move(row_counts)));
  if (weights.type == WeightType::kInt8 && !product->has_our_bits()) {
    why_not = "its sums are not exact";
    return nullptr;
  }
  return product;
}

LibraryProduct::LibraryProduct(const ProductLibrary& library, const PackedWeights& weights,
                               std::unique_ptr<LibraryMatrix> matrix,
                               std::vector<std::size_t> row_counts)
    : library_(&library),
      weights_(&weights),
      matrix_(std::move(matrix)),
      row_counts_(std::move(row_counts)) {}

void LibraryProduct::multiply(const Product& product) const {
  for (std::size_t r = 0; r < product.rows;) {
    const std::size_t padded_rows = block_rows(product.rows - r);
    Product block = product;
    block.rows = std::min(padded_rows, product.rows - r);
    block.x += r * block.x_stride;
    if (block.x_scales != nullptr) block.x_scales += r;
    block.y += r * product.y_stride;
    multiply_block(block, padded_rows);
    r += block.rows;
  }
}

std::size_t LibraryProduct::block_rows(std::size_t rows) const {
  const auto enough = std::ranges::lower_bound(row_counts_, rows);
  return enough != row_counts_.end() ? *enough : row_counts_.back();
}

void LibraryProduct::multiply_block(const Product& block, std::size_t padded_rows) const {
  thread_local Buffer inputs, outputs;
  const std::size_t row_cells = weights_->row_cells;
  std::uint32_t* const x = inputs.of(padded_rows * row_cells);
  for (std::size_t r = 0; r < block.rows; ++r) {
    std::copy_n(block.x + r * block.x_stride, row_cells, x + r * row_cells);
  }
  std::fill(x + block.rows * row_cells, x + padded_rows * row_cells, 0u);
  std::uint32_t* const sums = outputs.of(padded_rows * weights_->out_features);
  matrix_->multiply(x, padded_rows, sums);
  forget_tiles();
  finish_sums(block, sums);
}

bool LibraryProduct::has_our_bits() const {
  const std::size_t rows = row_counts_.back();
  const std::size_t stride = input_stride(weights_->row_cells);
  const auto x = make_aligned<std::uint32_t>(rows * stride);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < weights_->row_cells; ++c) {  // bytes of any value
      x[r * stride + c] = static_cast<std::uint32_t>((r * stride + c + 1) * 2654435761u);
    }
  }
  const std::vector<float> scales(rows, 1.0f);
  Matrix theirs(rows, weights_->out_features);
  Matrix ours(rows, weights_->out_features);
  Product product{.weights = weights_,
                  .x = x.get(),
                  .x_stride = stride,
                  .x_scales = scales.data(),
                  .x_zero = 128,
                  .rows = rows,
                  .y = theirs.view().data(),
                  .y_stride = theirs.cols()};
  multiply(product);
  product.y = ours.view().data();
  lintel::multiply(product);
  return std::memcmp(theirs.values().data(), ours.values().data(), ours.values().size_bytes()) == 0;
}

std::string LibraryProduct::description() const {
  const std::string least = std::to_string(row_counts_.front());
  const std::string most = std::to_string(row_counts_.back());
  return library_->name() + " in blocks of " + (least == most ? least : least + " to " + most) +
         " rows";
}

}  // namespace lintel
