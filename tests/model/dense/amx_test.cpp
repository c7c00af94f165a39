// SPDX-License-Identifier: Apache-2.0
// Our kernels on AMX's tiles. What is computed on tiles of plain C++ is held against the formula of
// the instructions on any machine; the instructions themselves where there are some.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "model/core/float_formats.h"
#include "model/ops/amx_check.h"
#include "model/ops/dense_amx.h"
#include "model/ops/dense_input.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using Multiply = void (*)(const Product&);

Matrix any_matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(generator);
  return matrix;
}

// Weights of one layer, and rows of inputs.
struct Layer {
  Layer(WeightType type, std::size_t in, std::size_t out, std::size_t max_rows,
        DenseInput::Range range = DenseInput::Range::kSigned)
      : weight(any_matrix(out, in, 1)),
        bias(any_matrix(1, out, 2)),
        packed(type, weight.values(), bias.values(), in, out),
        input(type, max_rows, in, range) {
    const Matrix x = any_matrix(max_rows, in, 3);
    for (std::size_t r = 0; r < max_rows; ++r) {
      for (std::size_t i = 0; i < in; ++i) {
        const float value = x.row(r)[i];
        input.values().row(r)[i] =
            range == DenseInput::Range::kNonNegative ? std::abs(value) : value;
      }
    }
    input.prepare(0, max_rows);
  }

  // Rows first .. first + rows - 1, into y, which has been filled before.
  Product product(std::size_t first, MatrixView<float> y) const {
    return {.weights = &packed,
            .x = input.cells() + first * input.stride(),
            .x_stride = input.stride(),
            .x_scales = input.scales() != nullptr ? input.scales() + first : nullptr,
            .x_zero = input.zero(),
            .rows = y.rows(),
            .y = y.data(),
            .y_stride = y.stride()};
  }

  Matrix weight;
  Matrix bias;
  PackedWeights packed;
  DenseInput input;
};

float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? 0.0f * x : x; }

// tdpbf16ps by its pseudocode, for one output: 16 pairs, the first ones and the second ones apart.
float bf16_step(float sum, const std::uint32_t* x, const std::vector<std::uint32_t>& w) {
  const auto value = [](std::uint32_t cell, int shift) {
    return flushed(bf16_to_f32(static_cast<std::uint16_t>(cell >> shift)));
  };
  float apart[2] = {0.0f, 0.0f};
  for (std::size_t k = 0; k < 16; ++k) {
    for (int i = 0; i < 2; ++i) {
      apart[i] = flushed(std::fma(value(x[k], 16 * i), value(w[k], 16 * i), apart[i]));
    }
  }
  return flushed(sum + flushed(apart[0] + apart[1]));
}

// An output by the definition: tile after tile of 16 cells.
float naive_output(const Product& product, std::size_t row, std::size_t n) {
  const PackedWeights& weights = *product.weights;
  const std::uint32_t* const x = product.x + row * product.x_stride;
  const std::uint32_t* const w = weights.group(n / kGroupWidth) + n % kGroupWidth;
  float sum = 0.0f;
  for (std::size_t first = 0; first < weights.row_cells; first += 16) {
    std::vector<std::uint32_t> cells_x(16), cells_w(16);
    for (std::size_t k = first; k < std::min(first + 16, weights.row_cells); ++k) {
      cells_x[k - first] = x[k];
      cells_w[k - first] = w[k * kGroupWidth];
    }
    sum = bf16_step(sum, cells_x.data(), cells_w);
  }
  return sum + weights.bias[n];
}

bool same_bits(MatrixView<const float> a, MatrixView<const float> b) {
  for (std::size_t r = 0; r < a.rows(); ++r) {
    if (std::memcmp(a.row(r).data(), b.row(r).data(), a.cols() * sizeof(float)) != 0) return false;
  }
  return true;
}

// The tiles to test, for tests that run on both: those of plain C++, and those of this machine.
std::vector<std::pair<std::string, Multiply>> kinds_of_tiles() {
  std::vector<std::pair<std::string, Multiply>> kinds = {{"twin", multiply_on_twin_tiles}};
  if (amx_available()) kinds.emplace_back("amx", multiply_on_amx);
  return kinds;
}

const std::vector<std::pair<std::size_t, std::size_t>> kShapes = {
    {1, 1},   {3, 2},    {31, 15},   {32, 16},  {33, 17},  {63, 33},  {64, 64},
    {65, 65}, {100, 30}, {130, 100}, {200, 96}, {256, 64}, {256, 97}, {1024, 70}};

TEST_CASE("on tiles bf16 is added up in the order of the instruction", "[amx]") {
  for (const auto& [in, out] : kShapes) {
    const Layer layer(WeightType::kBf16, in, out, 35);
    for (const std::size_t rows : {1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u}) {
      for (const auto& [name, multiply_on] : kinds_of_tiles()) {
        Matrix y(rows, out);
        const Product product = layer.product(0, y.view());
        multiply_on(product);
        int wrong = 0;
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t n = 0; n < out; ++n) {
            wrong += y.row(r)[n] != naive_output(product, r, n);
          }
        }
        CAPTURE(name, in, out, rows);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("on tiles int8 has the bits of every other kernel", "[amx]") {
  const auto range = GENERATE(DenseInput::Range::kSigned, DenseInput::Range::kNonNegative);
  for (const auto& [in, out] : kShapes) {
    const Layer layer(WeightType::kInt8, in, out, 70, range);
    for (const std::size_t rows : {1u, 2u, 15u, 16u, 17u, 31u, 33u, 48u, 49u, 64u, 70u}) {
      Matrix expected(rows, out);
      multiply(layer.product(0, expected.view()), /*portable=*/true);
      for (const auto& [name, multiply_on] : kinds_of_tiles()) {
        Matrix y(rows, out);
        multiply_on(layer.product(0, y.view()));
        CAPTURE(name, in, out, rows);
        CHECK(same_bits(y.view(), expected.view()));
      }
    }
  }
}

TEST_CASE("on tiles what follows a product has the bits that it has elsewhere", "[amx]") {
  const WeightType type = GENERATE(WeightType::kBf16, WeightType::kInt8);
  const bool relu = GENERATE(false, true);
  for (const std::size_t out : {1u, 17u, 40u, 64u, 100u}) {
    const Layer layer(type, 70, out, 37);
    for (const auto& [name, multiply_on] : kinds_of_tiles()) {
      for (const std::size_t rows : {3u, 16u, 20u, 37u}) {
        Matrix plain(rows, out);
        multiply_on(layer.product(0, plain.view()));
        // The same in a wider matrix, from its third column on.
        Matrix wide = any_matrix(rows, out + 7, 9);
        const Matrix before = any_matrix(rows, out + 7, 9);
        Product product = layer.product(0, wide.view().cols_from(3, out));
        product.relu = relu;
        product.add = !relu;
        multiply_on(product);
        int wrong = 0;
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t n = 0; n < out + 7; ++n) {
            float expected = before.row(r)[n];
            if (n >= 3 && n < out + 3) {
              const float y = plain.row(r)[n - 3];
              expected = product.relu ? std::max(y, 0.0f) : expected + y;
            }
            wrong += wide.row(r)[n] != expected;
          }
        }
        CAPTURE(name, to_string(type), out, rows, product.relu);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("on tiles outputs that are written as bf16 are the floats, rounded", "[amx]") {
  for (const std::size_t out : {1u, 17u, 32u, 40u, 64u, 100u, 129u}) {
    Layer layer(WeightType::kBf16, 70, out, 50);
    layer.packed.bias[0] = std::numeric_limits<float>::quiet_NaN();
    for (const auto& [name, multiply_on] : kinds_of_tiles()) {
      for (const std::size_t rows : {1u, 16u, 20u, 37u, 50u}) {
        Matrix floats(rows, out);
        Product product = layer.product(0, floats.view());
        product.relu = true;
        multiply_on(product);
        constexpr std::uint16_t kGuard = 0x1234;
        const std::size_t stride = out + 5;
        std::vector<std::uint16_t> halves(rows * stride, kGuard);
        Matrix untouched(rows, out);
        product.y = untouched.view().data();
        product.y_bf16 = halves.data();
        product.y_bf16_stride = stride;
        multiply_on(product);
        int wrong = 0;
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t n = 0; n < stride; ++n) {
            const std::uint16_t expected = n < out ? f32_to_bf16(floats.row(r)[n]) : kGuard;
            wrong += halves[r * stride + n] != expected;
          }
        }
        CAPTURE(name, out, rows);
        CHECK(wrong == 0);
        CHECK(std::ranges::count(untouched.values(), 0.0f) ==
              static_cast<std::ptrdiff_t>(rows * out));
      }
    }
  }
}

TEST_CASE("on tiles a row has the same bits alone and among any others", "[amx]") {
  const WeightType type = GENERATE(WeightType::kBf16, WeightType::kInt8);
  for (const auto& [in, out] : {std::pair{256u, 100u}, {70u, 64u}, {33u, 17u}}) {
    constexpr std::size_t kRows = 70;
    const Layer layer(type, in, out, kRows + 32);  // a tile reads beyond the rows
    for (const auto& [name, multiply_on] : kinds_of_tiles()) {
      Matrix alone(kRows, out);
      for (std::size_t r = 0; r < kRows; ++r) {
        multiply_on(layer.product(r, alone.view().rows_from(r, 1)));
      }
      for (std::size_t rows = 2; rows <= kRows; ++rows) {
        for (const std::size_t first : {std::size_t{0}, kRows - rows}) {
          Matrix y(rows, out);
          multiply_on(layer.product(first, y.view()));
          CAPTURE(name, to_string(type), in, out, rows, first);
          REQUIRE(same_bits(y.view(), alone.view().rows_from(first, rows)));
        }
      }
    }
  }
}

TEST_CASE("on tiles a row that is not finite leaves the others alone", "[amx]") {
  const WeightType type = GENERATE(WeightType::kBf16, WeightType::kInt8);
  Layer layer(type, 40, 20, 32);
  for (const auto& [name, multiply_on] : kinds_of_tiles()) {
    Matrix clean(17, 20);
    multiply_on(layer.product(0, clean.view()));
    layer.input.values().row(16)[39] = std::numeric_limits<float>::quiet_NaN();
    layer.input.values().row(17)[0] = std::numeric_limits<float>::infinity();  // stale, of the tile
    layer.input.prepare(16, 2);
    Matrix y(17, 20);
    Product product = layer.product(0, y.view());
    product.relu = true;
    multiply_on(product);
    CAPTURE(name, to_string(type));
    CHECK(std::isnan(y.row(16)[0]));
    int wrong = 0;
    for (std::size_t r = 0; r < 16; ++r) {
      for (std::size_t n = 0; n < 20; ++n) {
        wrong += y.row(r)[n] != std::max(clean.row(r)[n], 0.0f);
      }
    }
    CHECK(wrong == 0);
  }
}

// One row of one tile whose sums show in what order they were added.
float one_output(const std::vector<float>& x, const std::vector<float>& w, Multiply multiply_on) {
  const Matrix bias(1, 1);
  const PackedWeights packed(WeightType::kBf16, w, bias.values(), w.size(), 1);
  DenseInput input(WeightType::kBf16, 16, x.size());
  input.assign(0, x);
  float y = 0.0f;
  multiply_on({.weights = &packed,
               .x = input.cells(),
               .x_stride = input.stride(),
               .rows = 1,
               .y = &y,
               .y_stride = 1});
  return y;
}

TEST_CASE("a tile of bf16 keeps even and odd inputs apart, and knows no denormals", "[amx]") {
  for (const auto& [name, multiply_on] : kinds_of_tiles()) {
    CAPTURE(name);
    const float big = 0x1p24f;
    // One chain in order would lose the ones beside `big`.
    CHECK(one_output({big, 1, -big, 1}, {1, 1, 1, 1}, multiply_on) == 2.0f);
    CHECK(one_output({big, 1, 1, -big}, {1, 1, 1, 1}, multiply_on) == 1.0f);
    // The next tile loses nothing: it is added up by itself first.
    std::vector<float> x(64, 0.0f), ones(64, 1.0f);
    x[0] = big;
    x[32] = x[34] = 1.0f;
    CHECK(one_output(x, ones, multiply_on) == big + 2.0f);
    // 2^-63 * 2^-63 is the least normal number, and half of it is nothing.
    CHECK(one_output({0x1p-63f}, {0x1p-63f}, multiply_on) == 0x1p-126f);
    CHECK(one_output({0x1p-63f}, {0x1p-64f}, multiply_on) == 0.0f);
    CHECK(one_output({0x1p-127f}, {0x1p100f}, multiply_on) == 0.0f);
  }
}

TEST_CASE("threads that share weights on tiles get the same bits", "[amx][threads]") {
  const Layer layer(WeightType::kBf16, 256, 128, 32);
  for (const auto& [name, multiply_on] : kinds_of_tiles()) {
    const Multiply kernel = multiply_on;
    Matrix expected(20, 128);
    kernel(layer.product(0, expected.view()));
    std::vector<Matrix> results(3);
    std::vector<std::thread> threads;
    for (Matrix& result : results) {
      result = Matrix(20, 128);
      threads.emplace_back([&layer, &result, kernel] {
        const TileScope step;  // several products in one
        for (std::size_t rows = 1; rows <= 20; ++rows) {
          kernel(layer.product(0, result.view().rows_from(0, rows)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CAPTURE(name);
    for (const Matrix& result : results) CHECK(same_bits(result.view(), expected.view()));
  }
}

TEST_CASE("every instruction set finishes the sums of tiles as its other kernels do", "[amx]") {
  const Layer layer(WeightType::kInt8, 70, 50, 32);
  testing::for_each_instruction_set([&] {
    Matrix expected(20, 50), y(20, 50);
    multiply(layer.product(0, expected.view()), /*portable=*/true);
    multiply_on_twin_tiles(layer.product(0, y.view()));
    CHECK(same_bits(y.view(), expected.view()));
  });
}

TEST_CASE("AMX kernels are tested where the processor has AMX", "[amx]") {
  if (!amx_available()) WARN("skipped: no AMX here, so only its twin was tested");
  CHECK(kinds_of_tiles().size() == (amx_available() ? 2 : 1));
}

TEST_CASE("tiles that compute other bits than they should are found out", "[amx]") {
  for (const WeightType type : {WeightType::kInt8, WeightType::kBf16}) {
    CHECK(multiplies_as_twin(type, multiply_on_twin_tiles));
    CHECK_FALSE(multiplies_as_twin(type, [](const Product& product) {
      multiply_on_twin_tiles(product);
      float& last = product.y[product.rows * product.y_stride - 1];
      last = std::nextafter(last, 1e9f);
    }));
    if (amx_available()) CHECK(amx_is_right(type));
  }
  // int8 is exact on all kernels.
  CHECK(multiplies_as_twin(WeightType::kInt8, [](const Product& product) { multiply(product); }));
}

TEST_CASE("weights are padded to whole tiles, and their bytes count the padding", "[amx]") {
  for (const WeightType type : kWeightTypes) {
    const Layer layer(type, 70, 65, 1);
    const std::size_t cells = type == WeightType::kF32 ? 70 : type == WeightType::kBf16 ? 48 : 32;
    CHECK(layer.packed.group_cells == cells);
    const std::size_t vectors = type == WeightType::kInt8 ? 3 : 1;
    CHECK(layer.packed.bytes() == 128 * 4 * (cells + vectors));
    CHECK(layer.packed.bytes() == PackedWeights::bytes_of(type, 70, 65));
  }
  CHECK(input_stride(1) == 16);
  CHECK(input_stride(16) == 16);
  CHECK(input_stride(17) == 48);
  CHECK(input_stride(256) == 17 * 16);
}

}  // namespace
}  // namespace lintel
