// SPDX-License-Identifier: Apache-2.0
#include "tests/model/dense/nondeterministic_gemm.h"

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "model/core/float_formats.h"
#include "model/formats/safetensors.h"

namespace lintel::testing {

class OddMatrix final : public LibraryMatrix {
 public:
  OddMatrix(const NondeterministicGemm& library, const ProductShape& shape)
      : library_(library), shape_(shape), cells_(shape.row_cells * shape.out_features) {}

  void scramble() override {
    std::mt19937 generator(7);
    for (std::uint32_t& cell : cells_) {
      cell = static_cast<std::uint32_t>(generator());
      if (shape_.type == WeightType::kBf16) cell = (cell & 0x83ff83ffu) | 0x3c003c00u;
    }
  }

  void assign(const PackedWeights& weights) override {
    for (std::size_t n = 0; n < shape_.out_features; ++n) {
      for (std::size_t c = 0; c < shape_.row_cells; ++c) {
        cells_[n * shape_.row_cells + c] =
            weights.group(n / kGroupWidth)[c * kGroupWidth + n % kGroupWidth];
      }
    }
    if (library_.is_wrong_in_int8 && shape_.type == WeightType::kInt8) ++cells_[0];
  }

  void multiply(const std::uint32_t* x, std::size_t rows, std::uint32_t* sums) const override {
    {
      const std::lock_guard lock(library_.mutex_);
      ++library_.products_[rows];
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const int order = library_.order_of_(rows, r);
      for (std::size_t n = 0; n < shape_.out_features; ++n) {
        *sums++ = sum(x + r * shape_.row_cells, &cells_[n * shape_.row_cells], order);
      }
    }
  }

  std::size_t bytes() const override { return cells_.size() * sizeof(cells_[0]); }

 private:
  std::uint32_t sum(const std::uint32_t* x, const std::uint32_t* w, int order) const {
    const std::size_t count = shape_.row_cells;
    // Each number of rows begins at another cell, in either direction, so its order differs.
    const auto begin = static_cast<std::size_t>(order) % count;
    std::int32_t exact = 0;
    float sum = 0.0f;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t c = (begin + (order % 2 == 0 ? i : count - 1 - i)) % count;
      if (shape_.type == WeightType::kInt8) {
        for (int b = 0; b < 4; ++b) {
          const auto input = static_cast<std::uint8_t>(x[c] >> (8 * b));
          exact += input * static_cast<std::int8_t>(w[c] >> (8 * b));
        }
        continue;
      }
      for (const int shift : {0, 16}) {
        sum += bf16_to_f32(static_cast<std::uint16_t>(x[c] >> shift)) *
               bf16_to_f32(static_cast<std::uint16_t>(w[c] >> shift));
      }
    }
    return shape_.type == WeightType::kInt8 ? std::bit_cast<std::uint32_t>(exact)
                                            : std::bit_cast<std::uint32_t>(sum);
  }

  const NondeterministicGemm& library_;
  const ProductShape shape_;
  std::vector<std::uint32_t> cells_;  // [out_features, row_cells]
};

std::unique_ptr<LibraryMatrix> NondeterministicGemm::new_matrix(const ProductShape& shape) const {
  return std::make_unique<OddMatrix>(*this, shape);
}

std::map<std::size_t, int> NondeterministicGemm::products() const {
  const std::lock_guard lock(mutex_);
  return products_;
}

void NondeterministicGemm::forget() {
  const std::lock_guard lock(mutex_);
  products_.clear();
}

}  // namespace lintel::testing
