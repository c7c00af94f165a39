// SPDX-License-Identifier: Apache-2.0
#include "model/ops/amx_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "model/ops/dense_amx.h"
#include "model/ops/dense_input.h"

namespace lintel {
namespace {

constexpr std::size_t kIn = 200;   // three tiles of int8 and a rest
constexpr std::size_t kOut = 100;  // six tiles and a rest
constexpr std::size_t kMostRows = 3 * kTileRows;

// Numbers of either sign and several sizes, the same each time.
class Numbers {
 public:
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float next_float() { return static_cast<float>(static_cast<std::int32_t>(next())) * 0x1p-31f; }

 private:
  std::uint64_t state_ = 1;
};

}  // namespace

bool multiplies_as_twin(WeightType type, void (*multiply)(const Product& product)) {
  Numbers numbers;
  std::vector<float> weight(kIn * kOut);
  std::vector<float> bias(kOut);
  for (float& value : weight) value = numbers.next_float();
  for (float& value : bias) value = numbers.next_float();
  const PackedWeights packed(type, weight, bias, kIn, kOut);
  const std::size_t stride = input_stride(packed.row_cells);
  const auto x = make_aligned<std::uint32_t>(kMostRows * stride);
  std::vector<float> scales(kMostRows);
  for (std::size_t r = 0; r < kMostRows; ++r) {
    scales[r] = 1.0f + 0.5f * numbers.next_float();
    for (std::size_t c = 0; c < packed.row_cells; ++c) {
      // bf16: between 2^-8 and 1 of either sign.
      const std::uint32_t any = numbers.next();
      x[r * stride + c] = type == WeightType::kBf16 ? (any & 0x83ff83ffu) | 0x3c003c00u : any;
    }
  }
  for (const std::size_t rows : {std::size_t{1}, kTileRows + 1, kMostRows - 1}) {
    std::vector<float> wanted(rows * kOut, 0.25f);
    std::vector<float> found = wanted;
    Product product{.weights = &packed,
                    .x = x.get(),
                    .x_stride = stride,
                    .x_scales = scales.data(),
                    .x_zero = 128,
                    .rows = rows,
                    .y = wanted.data(),
                    .y_stride = kOut,
                    .add = rows > kTileRows};
    multiply_on_twin_tiles(product);
    product.y = found.data();
    multiply(product);
    if (std::memcmp(wanted.data(), found.data(), wanted.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

bool multiplies_blocks_exactly(void (*multiply)(const BlockProduct& product)) {
  constexpr std::size_t kInputs = 320;  // five tiles
  constexpr std::size_t kBlockRows = 81;
  Numbers numbers;
  DenseInput x(WeightType::kInt8Groups, kBlockRows, kInputs);
  std::vector<float> values(kInputs);
  for (std::size_t r = 0; r < kBlockRows; ++r) {
    for (float& value : values) value = numbers.next_float();
    x.assign(r, values);
  }
  Matrix drawn(kOut, kInputs);
  for (float& value : drawn.values()) value = numbers.next_float();
  const auto read = [&drawn](std::size_t first, MatrixView<float> rows) {
    for (std::size_t r = 0; r < rows.rows(); ++r) {
      std::ranges::copy(drawn.row(first + r), rows.row(r).begin());
    }
  };
  for (const bool has_4_bits : {false, true}) {
    const BlockMatrix weights = has_4_bits ? BlockMatrix::quantized_to_4_bits(kInputs, kOut, read)
                                           : BlockMatrix::quantized_to_8_bits(kInputs, kOut, read);
    for (const std::size_t rows : {std::size_t{1}, kTileRows + 1, kBlockRows}) {
      Matrix wanted(rows, kOut);
      Matrix found(rows, kOut);
      BlockProduct product{.weights = &weights,
                           .x = x.blocks(),
                           .y = wanted.view(),
                           .end_panel = weights.num_panels()};
      lintel::multiply(product, /*portable=*/true);
      product.y = found.view();
      multiply(product);
      if (!std::ranges::equal(std::as_bytes(wanted.values()), std::as_bytes(found.values()))) {
        return false;
      }
    }
  }
  return true;
}

bool amx_is_right(WeightType type) {
  if (type == WeightType::kBlocks) {
    static const bool blocks = [] {
      const TileScope scope;
      return multiplies_blocks_exactly(multiply_blocks_on_amx);
    }();
    return blocks;
  }
  const auto check = [](WeightType of) {
    const TileScope scope;
    return multiplies_as_twin(of, multiply_on_amx);
  };
  if (type == WeightType::kInt8) {
    static const bool int8 = check(WeightType::kInt8);
    return int8;
  }
  static const bool bf16 = check(WeightType::kBf16);
  return bf16;
}

}  // namespace lintel
