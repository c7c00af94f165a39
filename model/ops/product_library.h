// SPDX-License-Identifier: Apache-2.0
// ProductLibrary: a library whose matrix products are faster than our own kernels on some machines.
//
// A library is free to sum in another order for another number of rows, and some do: one row at a
// time by another kernel than two, more rows by other blocks. Then the bits of a row would depend
// on its batch mates (promise 1). So a library runs at a few numbers of rows only, at which it was
// seen, for this very shape, to give every row the same bits (ProductLibrary::proven_rows).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/ops/dense_kernels.h"
#include "model/ops/weight_type.h"

namespace lintel {

struct ProductShape {
  WeightType type = WeightType::kBf16;
  std::size_t row_cells = 0;  // of an input row: its padding counts as inputs
  std::size_t out_features = 0;

  std::size_t in_features() const { return row_cells * inputs_per_cell(type); }
  auto operator<=>(const ProductShape&) const = default;
};

// A cell of any value: bytes, or f32 or bf16 between 2^-8 and 1 of either sign.
std::uint32_t any_cell(WeightType type, std::uint32_t random);

// The weights of one layer in a library's layout. multiply() is shareable between threads.
class LibraryMatrix {
 public:
  virtual ~LibraryMatrix() = default;

  // Makes the weights of any values, none like another: sums in another order shall show.
  virtual void scramble() = 0;
  // Makes them W^T. REQUIRES: of this matrix's shape.
  virtual void assign(const PackedWeights& weights) = 0;
  // The sums x W^T of each row, [rows, out_features] without gaps: f32, for int8 exact int32.
  // x: [rows, row_cells], as of a Product.
  virtual void multiply(const std::uint32_t* x, std::size_t rows, std::uint32_t* sums) const = 0;
  virtual std::size_t bytes() const = 0;
};

// Shareable between threads.
class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;

  virtual std::string name() const = 0;  // "onednn (avx512_core_amx)"
  // From how many rows on it is faster than our own kernels on this machine; SIZE_MAX: never. 1,
  // or of int8 more: its sums are exact in any order, those of the others are in another
  // order, so it is all rows or none. A table, not a race of clocks: the bits of a session must not
  // depend on what else ran when the server started.
  virtual std::size_t worthwhile_rows(WeightType type) const = 0;
  // Null where it has no such product on this machine.
  virtual std::unique_ptr<LibraryMatrix> new_matrix(const ProductShape& shape) const = 0;

  // Numbers of rows at which a product of this shape gives a row the same bits in every place and
  // with any other rows, in ascending order: all that may run. Empty: none are the same.
  // Found when a shape is first asked for, by some hundred rows; `matrix` is one of the shape, and
  // loses its weights.
  const std::vector<std::size_t>& proven_rows(const ProductShape& shape,
                                              LibraryMatrix& matrix) const;

 private:
  mutable std::mutex mutex_;
  mutable std::map<ProductShape, std::vector<std::size_t>> proven_;
};

}  // namespace lintel
