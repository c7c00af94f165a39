// SPDX-License-Identifier: Apache-2.0
// LibraryProduct: y = x W^T + b by a library, with the same bits in any batch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "model/ops/product_library.h"

namespace lintel {

// Const and shareable between threads.
class LibraryProduct {
 public:
  // Null where the library has no such product, too few numbers of rows agree, or int8 does not
  // have the bits of our own kernels: `why_not` then says so. `weights` outlives the product, as
  // does `library`; its cells are not needed any more.
  static std::unique_ptr<LibraryProduct> make(const ProductLibrary& library,
                                              const PackedWeights& weights, std::string& why_not);

  // Multiplies as lintel::multiply: int8 with its bits. The rows are cut into blocks of proven
  // sizes, the last of which is filled up with rows of zeros. Working memory is the thread's, and
  // stays.
  void multiply(const Product& product) const;

  // Sizes of blocks that may run, in ascending order.
  const std::vector<std::size_t>& row_counts() const { return row_counts_; }
  // "onednn (avx512_core_amx) in blocks of 2 to 64 rows"
  std::string description() const;
  std::size_t bytes() const { return matrix_->bytes(); }

 private:
  LibraryProduct(const ProductLibrary& library, const PackedWeights& weights,
                 std::unique_ptr<LibraryMatrix> matrix, std::vector<std::size_t> row_counts);

  // The size of the next block when `rows` are left.
  std::size_t block_rows(std::size_t rows) const;
  void multiply_block(const Product& block, std::size_t padded_rows) const;
  bool has_our_bits() const;

  const ProductLibrary* library_;
  const PackedWeights* weights_;
  std::unique_ptr<const LibraryMatrix> matrix_;
  std::vector<std::size_t> row_counts_;
};

}  // namespace lintel
