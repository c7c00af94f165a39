// SPDX-License-Identifier: Apache-2.0
// Matrices that are quantised at load: int8 with a scale an output, int4 with one for 32 inputs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/core/float_formats.h"
#include "model/ops/block_product.h"
#include "model/ops/dense.h"

namespace lintel {
namespace {

Matrix drawn(std::size_t rows, std::size_t cols, unsigned seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  Matrix values(rows, cols);
  for (float& value : values.values()) value = normal(generator);
  return values;
}

ReadWeightRows reader(const Matrix& weights) {
  return [&weights](std::size_t first, MatrixView<float> to) {
    for (std::size_t r = 0; r < to.rows(); ++r) {
      std::ranges::copy(weights.row(first + r), to.row(r).begin());
    }
  };
}

BlockMatrix quantized(const Matrix& weights, int bits) {
  return bits == 4
             ? BlockMatrix::quantized_to_4_bits(weights.cols(), weights.rows(), reader(weights))
             : BlockMatrix::quantized_to_8_bits(weights.cols(), weights.rows(), reader(weights));
}

std::vector<float> row_of(const BlockMatrix& matrix, std::size_t n) {
  std::vector<float> row(matrix.in_features());
  matrix.dequantize_row(n, row);
  return row;
}

double squared_error(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return sum;
}

// The smallest error of 32 values with any of the scales that are tried.
double least_error(std::span<const float> x) {
  const float largest =
      *std::ranges::max_element(x, {}, [](float value) { return std::abs(value); });
  double least = INFINITY;
  for (int k = -9; k <= 9 && largest != 0.0f; ++k) {
    const double inverse = (-8.0 + 0.1 * k) / largest;
    double products = 0.0, squares = 0.0, all = 0.0;
    for (const float value : x) {
      const double level = std::clamp(std::nearbyint(value * inverse), -8.0, 7.0);
      products += value * level;
      squares += level * level;
      all += double{value} * value;
    }
    least = std::min(least, all - products * products / squares);
  }
  return largest == 0.0f ? 0.0 : least;
}

std::vector<float> product_of(const BlockMatrix& weights, const DenseInput& x,
                              std::size_t first_row, std::size_t rows, bool portable = false) {
  BlockInput from = x.blocks();
  from.cells += first_row * from.cell_stride;
  from.scales += first_row * from.scale_stride;
  from.sums += 2 * first_row * from.scale_stride;
  from.group_sums += first_row * ((from.scale_stride + 3) / 4);
  std::vector<float> y(rows * weights.out_features());
  multiply({.weights = &weights,
            .x = from,
            .y = {y.data(), rows, weights.out_features(), weights.out_features()},
            .end_panel = weights.num_panels()},
           portable);
  return y;
}

DenseInput group_inputs(std::size_t rows, std::size_t cols) {
  const Matrix values = drawn(rows, cols, 7);
  DenseInput x(WeightType::kInt4, rows, cols);
  for (std::size_t r = 0; r < rows; ++r) x.assign(r, values.row(r));
  return x;
}

bool same_floats(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_CASE("4 bits: each block has the scale with the smallest error", "[rows]") {
  Matrix weights = drawn(70, 96, 1, 0.02f);
  std::ranges::fill(weights.row(3).first(32), 0.0f);
  weights.row(4)[40] = 9.0f;  // alone far from the others
  const BlockMatrix matrix = quantized(weights, 4);
  double all = 0.0, size = 0.0;
  for (std::size_t n = 0; n < weights.rows(); ++n) {
    const std::vector<float> row = row_of(matrix, n);
    for (std::size_t first = 0; first < row.size(); first += 32) {
      const std::span<const float> exact = weights.row(n).subspan(first, 32);
      const double error = squared_error(std::span(row).subspan(first, 32), exact);
      double energy = 0.0;
      for (const float value : exact) energy += double{value} * value;
      CAPTURE(n, first);
      // The scale is rounded to f16, which adds up to 2^-22 of the energy.
      REQUIRE(error <= least_error(exact) + 1e-6 * energy);
      if (n == 4) continue;
      all += error;
      size += energy;
    }
  }
  // 8.12 % in the mean for normal values; the nearest levels of the largest value's scale have 8.6.
  CHECK(std::sqrt(all / size) < 0.084);
}

TEST_CASE("8 bits: each output has a scale, its largest weight is 127 of it", "[rows]") {
  const Matrix weights = drawn(70, 101, 2, 0.02f);
  const BlockMatrix matrix = quantized(weights, 8);
  CHECK(matrix.has_output_scales());
  for (std::size_t n = 0; n < weights.rows(); ++n) {
    float largest = 0.0f;
    for (const float value : weights.row(n)) largest = std::max(largest, std::abs(value));
    const float scale = largest / 127.0f;
    const std::vector<float> row = row_of(matrix, n);
    for (std::size_t i = 0; i < row.size(); ++i) {
      CAPTURE(n, i);
      REQUIRE(std::abs(row[i] - weights.row(n)[i]) <= scale * 0.5001f);
    }
  }
}

TEST_CASE("quantised product: outputs equal those of a twin in double precision", "[rows]") {
  const int bits = GENERATE(4, 8);
  for (const auto& [in, out] : std::vector<std::pair<std::size_t, std::size_t>>{
           {32, 1}, {128, 64}, {160, 65}, {512, 100}, {1280, 200}, {100, 70}, {3, 5}}) {
    if (bits == 4 && in % 32 != 0) continue;
    const Matrix weights = drawn(out, in, 3);
    const BlockMatrix matrix = quantized(weights, bits);
    const DenseInput x = group_inputs(13, in);
    const BlockInput of = x.blocks();
    const std::vector<float> y = product_of(matrix, x, 0, 13);
    for (std::size_t n = 0; n < out; ++n) {
      const std::vector<float> row = row_of(matrix, n);
      for (std::size_t r = 0; r < 13; ++r) {
        const auto* const bytes =
            reinterpret_cast<const std::int8_t*>(of.cells + r * of.cell_stride);
        double sum = 0.0, size = 0.0;
        for (std::size_t i = 0; i < in; ++i) {
          const double term = double{row[i]} * bytes[i] * of.scales[r * of.scale_stride + i / 32];
          sum += term;
          size += std::abs(term);
        }
        CAPTURE(bits, in, out, r, n);
        REQUIRE(std::abs(y[r * out + n] - sum) <= 1e-5 * size + 1e-30);
      }
    }
  }
}

TEST_CASE("quantised product: a row has the same bits alone and by every kernel", "[rows]") {
  const int bits = GENERATE(4, 8);
  CAPTURE(bits);
  const Matrix weights = drawn(150, 736, 4);
  const BlockMatrix matrix = quantized(weights, bits);
  constexpr std::size_t kRows = 17;
  const DenseInput x = group_inputs(kRows, 736);
  const std::vector<float> all = product_of(matrix, x, 0, kRows);
  CHECK(same_floats(product_of(matrix, x, 0, kRows, /*portable=*/true), all));
  for (std::size_t count = 1; count < kRows; ++count) {
    for (std::size_t first = 0; first + count <= kRows; first += count) {
      CAPTURE(first, count);
      REQUIRE(same_floats(product_of(matrix, x, first, count),
                          std::span(all).subspan(first * 150, count * 150)));
    }
  }
}

TEST_CASE("dense of int4: inputs that are no multiple of 32 make it int8", "[rows]") {
  for (const std::size_t in : {std::size_t{96}, std::size_t{100}}) {
    const Matrix weights = drawn(70, in, 5);
    const std::vector<float> bias(70, 0.5f);
    const Dense dense(reader(weights), bias, in, 70, {.weight_type = WeightType::kInt4});
    CHECK(dense.weight_type() == WeightType::kInt8Groups);
    CHECK(dense.weight_bytes() <= Dense::most_weight_bytes(in, 70, WeightType::kInt4));
    const BlockMatrix alone = quantized(weights, in == 96 ? 4 : 8);
    const DenseInput x = group_inputs(5, in);
    Matrix y(5, 70);
    dense.apply(x, y.view());
    const std::vector<float> expected = product_of(alone, x, 0, 5);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(in, i);
      REQUIRE(y.values()[i] == expected[i] + 0.5f);
    }
  }
}

TEST_CASE("inputs of groups: bytes have a scale for each 128 values", "[rows]") {
  DenseInput x(WeightType::kInt8Groups, 1, 170);
  std::vector<float> values(170);
  for (std::size_t i = 0; i < 170; ++i) values[i] = i < 128 ? static_cast<float>(i) - 64.0f : 9.0f;
  x.assign(0, values);
  const BlockInput of = x.blocks();
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(of.cells);
  for (std::size_t s = 0; s < 6; ++s) CHECK(of.scales[s] == (s < 4 ? 64.0f : 9.0f) / 127.0f);
  std::int32_t sums[12] = {}, group_sums[2] = {};
  for (std::size_t i = 0; i < 170; ++i) {
    CHECK(std::abs(bytes[i] - values[i] / of.scales[i / 32]) <= 0.5f + 1e-5f);
    sums[i / 16] += bytes[i];
    group_sums[i / 128] += bytes[i];
  }
  for (std::size_t i = 170; i < 192; ++i) CHECK(bytes[i] == 0);
  CHECK(std::ranges::equal(sums, std::span(of.sums, 12)));
  CHECK(std::ranges::equal(group_sums, std::span(of.group_sums, 2)));
}

}  // namespace
}  // namespace lintel
