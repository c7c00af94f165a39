// SPDX-License-Identifier: Apache-2.0
#include "model/ops/product_library.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "model/core/tensor.h"

namespace lintel {
namespace {

// The row counts that are tried. Few, as each is a primitive that a library has to make; up to 64,
// from where on more rows at once are no faster.
constexpr std::array<std::size_t, 6> kRowCounts = {2, 8, 16, 32, 48, 64};
constexpr std::size_t kMostRows = kRowCounts.back();

// Inputs without structure: bytes of any value, or f32 or bf16 between 2^-8 and 1 of either sign.
// Their sums are rounded at nearly every step, so no two orders of summation agree in all outputs.
AlignedArray<std::uint32_t> any_inputs(const ProductShape& shape, std::size_t rows) {
  auto x = make_aligned<std::uint32_t>(rows * shape.row_cells);
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < rows * shape.row_cells; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto random = static_cast<std::uint32_t>(state >> 32);
    x[i] = any_cell(shape.type, random);
  }
  return x;
}

// Looks for row counts that agree, by running all of them over the same rows.
class Comparison {
 public:
  Comparison(const ProductShape& shape, const LibraryMatrix& matrix)
      : shape_(shape),
        matrix_(matrix),
        x_(any_inputs(shape, 2 * kMostRows)),
        reference_(kMostRows, shape.out_features),
        sums_(kMostRows, shape.out_features) {}

  // The most counts that give every row the same bits, in every place.
  std::vector<std::size_t> largest_agreement() {
    std::vector<std::size_t> most;
    std::vector<std::size_t> open(kRowCounts.begin(), kRowCounts.end());
    while (open.size() > most.size()) {
      take_reference(open.front());
      std::vector<std::size_t> agreeing, others;
      for (const std::size_t count : open) {
        if (agrees(count)) {
          agreeing.push_back(count);
        } else if (count != open.front()) {  // which may not even agree with itself
          others.push_back(count);
        }
      }
      if (agreeing.size() > most.size()) most = std::move(agreeing);
      open = std::move(others);
    }
    return most;
  }

 private:
  // Records the result of each row as the first of `count`.
  void take_reference(std::size_t count) {
    for (std::size_t r = 0; r < kMostRows; ++r) {
      run(r, count);
      std::ranges::copy(sums_.row(0), reference_.row(r).begin());
    }
  }

  bool agrees(std::size_t count) {
    run(0, count);
    return std::memcmp(sums_.row(0).data(), reference_.row(0).data(),
                       count * shape_.out_features * sizeof(float)) == 0;
  }

  void run(std::size_t first, std::size_t count) {
    matrix_.multiply(x_.get() + first * shape_.row_cells, count,
                     reinterpret_cast<std::uint32_t*>(sums_.row(0).data()));
  }

  const ProductShape& shape_;
  const LibraryMatrix& matrix_;
  const AlignedArray<std::uint32_t> x_;  // [2 * kMostRows, row_cells]
  Matrix reference_;                     // [kMostRows, out_features], of bits
  Matrix sums_;                          // the same
};

}  // namespace

std::uint32_t any_cell(WeightType type, std::uint32_t random) {
  switch (type) {
    case WeightType::kF32:
      return (random & 0x83ffffffu) | 0x3c000000u;
    case WeightType::kBf16:
      return (random & 0x83ff83ffu) | 0x3c003c00u;
    default:
      return random;
  }
}

const std::vector<std::size_t>& ProductLibrary::proven_rows(const ProductShape& shape,
                                                            LibraryMatrix& matrix) const {
  const std::lock_guard lock(mutex_);
  const auto found = proven_.find(shape);
  if (found != proven_.end()) return found->second;
  matrix.scramble();
  return proven_[shape] = Comparison(shape, matrix).largest_agreement();
}

}  // namespace lintel
