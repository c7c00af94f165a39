// SPDX-License-Identifier: Apache-2.0
// Matrices of blocks: packing without loss, quantisation, and products against a twin in double
// precision.
#include "model/ops/block_product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/core/float_formats.h"
#include "model/core/step_thread_pool.h"
#include "model/ops/amx_check.h"
#include "model/ops/dense.h"
#include "model/ops/dense_amx.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

constexpr std::array kTypes = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K,
                               DType::kQ6_K};

// Random blocks, or where `extreme` the largest levels of all and, of bytes, the least in turn.
class Stored {
 public:
  Stored(DType of_type, std::size_t inputs, std::size_t outputs, bool extreme = false)
      : type(of_type),
        in(inputs),
        out(outputs),
        row_bytes_(in / values_per_block(type) * bytes_per_block(type)),
        bytes_(row_bytes_ * out),
        values(in * out) {
    std::mt19937 generator(static_cast<unsigned>(in * 31 + out));
    for (std::byte& byte : bytes_) {
      byte = extreme ? std::byte{0xff} : static_cast<std::byte>(generator());
    }
    for (std::size_t at = 0; at < bytes_.size(); at += bytes_per_block(type)) {
      if (extreme && type == DType::kQ8_0) {
        const bool is_least = at / bytes_per_block(type) % 2 != 0;  // -128, else 127
        std::fill_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at + 2), 32,
                    is_least ? std::byte{0x80} : std::byte{0x7f});
      }
      put_half(at + (type == DType::kQ6_K ? 208 : 0), generator);
      if (type == DType::kQ4_K || type == DType::kQ5_K) put_half(at + 2, generator);
    }
    dequantize(type, bytes_, values);
  }

  BlockMatrix::ReadBlocks reader() const {
    return [this](std::size_t first, std::size_t count, std::span<std::byte> blocks) {
      REQUIRE(blocks.size() == count * row_bytes_);
      std::memcpy(blocks.data(), bytes_.data() + first * row_bytes_, blocks.size());
    };
  }
  BlockMatrix matrix() const { return BlockMatrix(type, in, out, reader()); }

  const DType type;
  const std::size_t in;
  const std::size_t out;

 private:
  // 0.0625 to 0.125, of either sign.
  void put_half(std::size_t at, std::mt19937& generator) {
    const auto half = static_cast<std::uint16_t>((generator() & 0x83ffu) | 0x2c00u);
    std::memcpy(bytes_.data() + at, &half, sizeof half);
  }

  std::size_t row_bytes_;
  std::vector<std::byte> bytes_;

 public:
  std::vector<float> values;  // [out, in]
};

DenseInput drawn_input(std::size_t rows, std::size_t cols, bool extreme = false) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  DenseInput x(WeightType::kBlocks, rows, cols);
  for (std::size_t r = 0; r < rows; ++r) {
    for (float& value : x.values().row(r)) {
      value = extreme ? (r % 2 == 0 ? 1.0f : -1.0f) : normal(generator);
    }
  }
  x.prepare(0, rows);
  return x;
}

// The product of the quantised inputs, in double precision.
double twin(const Stored& stored, const BlockInput& x, std::size_t r, std::size_t n) {
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(x.cells + r * x.cell_stride);
  double sum = 0.0;
  for (std::size_t i = 0; i < stored.in; ++i) {
    sum +=
        double{stored.values[n * stored.in + i]} * bytes[i] * x.scales[r * x.scale_stride + i / 32];
  }
  return sum;
}

std::vector<float> product(const BlockMatrix& weights, const DenseInput& x, std::size_t first_row,
                           std::size_t rows, bool portable = false) {
  BlockInput from = x.blocks();
  from.cells += first_row * from.cell_stride;
  from.scales += first_row * from.scale_stride;
  from.sums += 2 * first_row * from.scale_stride;
  if (from.group_sums != nullptr) from.group_sums += first_row * ((from.scale_stride + 3) / 4);
  std::vector<float> y(rows * weights.out_features());
  multiply({.weights = &weights,
            .x = from,
            .y = {y.data(), rows, weights.out_features(), weights.out_features()},
            .end_panel = weights.num_panels()},
           portable);
  return y;
}

bool equal_floats(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_CASE("block matrix: rows have the bits of the file", "[rows]") {
  const DType type = GENERATE(from_range(kTypes));
  CAPTURE(to_string(type));
  const Stored stored(type, 512, 130);
  const BlockMatrix matrix = stored.matrix();
  std::vector<float> row(stored.in);
  for (std::size_t n = 0; n < stored.out; ++n) {
    matrix.dequantize_row(n, row);
    REQUIRE(equal_floats(row, std::span(stored.values).subspan(n * stored.in, stored.in)));
  }
  // Nothing beside what the file has, but the last panel's padding.
  const std::size_t file_bits = 8 * bytes_per_block(type) / values_per_block(type);
  CHECK(matrix.bytes() * 8 <= (file_bits + 1) * stored.in * 192);
}

TEST_CASE("block product: outputs equal those of a twin in double precision", "[rows]") {
  const DType type = GENERATE(from_range(kTypes));
  const bool extreme = GENERATE(false, true);
  CAPTURE(to_string(type), extreme);
  for (const auto& [in, out] : std::vector<std::pair<std::size_t, std::size_t>>{
           {256, 1}, {256, 64}, {512, 100}, {1280, 200}}) {
    const Stored stored(type, in, out, extreme);
    const BlockMatrix matrix = stored.matrix();
    const DenseInput x = drawn_input(13, in, extreme);
    const std::vector<float> y = product(matrix, x, 0, 13);
    for (std::size_t r = 0; r < 13; ++r) {
      for (std::size_t n = 0; n < out; ++n) {
        double size = 0.0;  // of the terms, whose rounding errors add up
        for (std::size_t i = 0; i < in; ++i) size += std::abs(stored.values[n * in + i]);
        CAPTURE(in, out, r, n);
        REQUIRE(std::abs(y[r * out + n] - twin(stored, x.blocks(), r, n)) <= 1e-5 * size);
      }
    }
  }
}

TEST_CASE("block product: a row has the same bits alone and by every kernel", "[rows]") {
  const DType type = GENERATE(from_range(kTypes));
  CAPTURE(to_string(type));
  const Stored stored(type, 768, 150);
  const BlockMatrix matrix = stored.matrix();
  constexpr std::size_t kRows = 17;
  const DenseInput x = drawn_input(kRows, stored.in);
  const std::vector<float> all = product(matrix, x, 0, kRows);
  CHECK(equal_floats(product(matrix, x, 0, kRows, /*portable=*/true), all));
  for (std::size_t count = 1; count < kRows; ++count) {
    for (std::size_t first = 0; first + count <= kRows; first += count) {
      CAPTURE(first, count);
      REQUIRE(equal_floats(product(matrix, x, first, count),
                           std::span(all).subspan(first * stored.out, count * stored.out)));
    }
  }
}

TEST_CASE("dense of blocks: parts of blocks and floats are one product", "[rows]") {
  const Stored first(DType::kQ4_K, 256, 70);
  const Stored second(DType::kQ6_K, 256, 64);
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Matrix floats(5, 256);
  for (float& value : floats.values()) value = normal(generator);
  const std::size_t out = 70 + 5 + 64;
  std::vector<float> bias(out);
  for (float& value : bias) value = normal(generator);
  const std::vector<Dense::StoredRows> parts = {
      {.count = 70, .type = first.type, .read_blocks = first.reader()},
      {.count = 5,
       .read_floats =
           [&](std::size_t row, MatrixView<float> to) {
             for (std::size_t r = 0; r < to.rows(); ++r) {
               std::ranges::copy(floats.row(row + r), to.row(r).begin());
             }
           }},
      {.count = 64, .type = second.type, .read_blocks = second.reader()}};
  const Dense dense(parts, bias, 256, {.weight_type = WeightType::kBlocks});
  REQUIRE(dense.out_features() == out);
  REQUIRE(dense.weight_type() == WeightType::kBlocks);

  constexpr std::size_t kRows = 7;
  const DenseInput x = drawn_input(kRows, 256);
  Matrix y(kRows, out);
  dense.apply(x, y.view());
  const BlockMatrix first_matrix = first.matrix();
  const std::vector<float> of_first = product(first_matrix, x, 0, kRows);
  DenseInput copy = drawn_input(kRows, 256);
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t n = 0; n < 70; ++n) {
      REQUIRE(y.row(r)[n] == of_first[r * 70 + n] + bias[n]);
    }
    for (std::size_t n = 0; n < 5; ++n) {
      double sum = bias[70 + n];
      for (std::size_t i = 0; i < 256; ++i)
        sum += double{floats.row(n)[i]} * copy.values().row(r)[i];
      REQUIRE(y.row(r)[70 + n] == Approx(sum).margin(1e-4));
    }
    for (std::size_t n = 0; n < 64; ++n) {
      REQUIRE(y.row(r)[75 + n] ==
              Approx(twin(second, x.blocks(), r, n) + bias[75 + n]).margin(0.05));
    }
  }

  Matrix added(kRows, out);
  std::ranges::fill(added.values(), 1.0f);
  dense.apply(x, added.view(), Dense::Output::kAdd);
  for (std::size_t i = 0; i < added.values().size(); ++i) {
    REQUIRE(added.values()[i] == 1.0f + y.values()[i]);
  }
}

TEST_CASE("dense of blocks: a team computes the bits of one thread", "[rows]") {
  const Stored stored(DType::kQ5_K, 512, 500);
  const std::vector<Dense::StoredRows> parts = {
      {.count = 500, .type = stored.type, .read_blocks = stored.reader()}};
  const Dense dense(parts, std::vector<float>(500), 512, {.weight_type = WeightType::kBlocks});
  const DenseInput x = drawn_input(9, 512);
  Matrix alone(9, 500);
  dense.apply(x, alone.view());
  StepThreadPool team;
  const StepHelpers helpers(team, 3);
  for (int i = 0; i < 20; ++i) {
    Matrix shared(9, 500);
    dense.apply(x, shared.view(), Dense::Output::kStore, nullptr, &team);
    REQUIRE(equal_floats(shared.values(), alone.values()));
  }
}

TEST_CASE("inputs of blocks: bytes have a scale for each 32 values", "[rows]") {
  DenseInput x(WeightType::kBlocks, 1, 40);
  for (std::size_t i = 0; i < 40; ++i) {
    x.values().row(0)[i] = i < 32 ? static_cast<float>(i) - 16.0f : 1000.0f;
  }
  x.prepare(0, 1);
  const BlockInput of = x.blocks();
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(of.cells);
  CHECK(of.scales[0] == 16.0f / 127.0f);
  CHECK(of.scales[1] == 1000.0f / 127.0f);
  std::int32_t sums[4] = {};
  for (std::size_t i = 0; i < 40; ++i) {
    const double expected = x.values().row(0)[i] / of.scales[i / 32];
    CHECK(std::abs(bytes[i] - expected) <= 0.5 + 1e-5);
    sums[i / 16] += bytes[i];
  }
  for (std::size_t i = 40; i < 64; ++i) CHECK(bytes[i] == 0);
  CHECK(std::ranges::equal(sums, std::span(of.sums, 4)));
}

// ---- Matrices that are quantised when they are loaded.

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

DenseInput group_inputs(std::size_t rows, std::size_t cols) {
  const Matrix values = drawn(rows, cols, 7);
  DenseInput x(WeightType::kInt4, rows, cols);
  for (std::size_t r = 0; r < rows; ++r) x.assign(r, values.row(r));
  return x;
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
    const std::vector<float> y = product(matrix, x, 0, 13);
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
  const std::vector<float> all = product(matrix, x, 0, kRows);
  CHECK(equal_floats(product(matrix, x, 0, kRows, /*portable=*/true), all));
  for (std::size_t count = 1; count < kRows; ++count) {
    for (std::size_t first = 0; first + count <= kRows; first += count) {
      CAPTURE(first, count);
      REQUIRE(equal_floats(product(matrix, x, first, count),
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
    const std::vector<float> expected = product(alone, x, 0, 5);
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

// ---- Products on tiles: of plain C++, and of this machine where it has AMX.

using MultiplyBlocks = void (*)(const BlockProduct&);

std::vector<std::pair<std::string, MultiplyBlocks>> kinds_of_block_tiles() {
  std::vector<std::pair<std::string, MultiplyBlocks>> kinds = {
      {"twin", multiply_blocks_on_twin_tiles}};
  if (amx_available()) kinds.emplace_back("amx", multiply_blocks_on_amx);
  return kinds;
}

// Panels first_panel .. end_panel - 1 of some rows.
void check_on_tiles(const BlockMatrix& weights, const DenseInput& x, std::size_t rows,
                    std::size_t first_panel, std::size_t end_panel, bool add) {
  const std::size_t out = weights.out_features();
  const Matrix bias = drawn(1, out, 8);
  const auto run = [&](const auto& kernel) {
    Matrix y = drawn(rows, out + 3, 9);
    kernel(BlockProduct{.weights = &weights,
                        .x = x.blocks(),
                        .bias = bias.values().data(),
                        .y = y.view().cols_from(2, out),
                        .add = add,
                        .first_panel = first_panel,
                        .end_panel = end_panel});
    return y;
  };
  const Matrix wanted =
      run([](const BlockProduct& product) { multiply(product, /*portable=*/true); });
  for (const auto& [name, kernel] : kinds_of_block_tiles()) {
    CAPTURE(name, rows, weights.in_features(), out, first_panel, end_panel, add);
    REQUIRE(equal_floats(run(kernel).values(), wanted.values()));
  }
}

constexpr std::size_t kTileTestRows[] = {1, 8, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 100};

TEST_CASE("on tiles a product of blocks has the bits of every other kernel", "[rows][amx]") {
  const DType type = GENERATE(DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K);
  const bool extreme = GENERATE(false, true);
  CAPTURE(to_string(type), extreme);
  for (const auto& [in, out] :
       std::vector<std::pair<std::size_t, std::size_t>>{{256, 1}, {512, 64}, {768, 150}}) {
    const Stored stored(type, in, out, extreme);
    const BlockMatrix matrix = stored.matrix();
    const DenseInput x = drawn_input(100, in, extreme);
    for (const std::size_t rows : kTileTestRows) {
      check_on_tiles(matrix, x, rows, 0, matrix.num_panels(), /*add=*/rows % 2 == 0);
    }
    check_on_tiles(matrix, x, 20, matrix.num_panels() - 1, matrix.num_panels(), /*add=*/true);
  }
}

TEST_CASE("on tiles a quantised product has the bits of every other kernel", "[rows][amx]") {
  const int bits = GENERATE(4, 8);
  CAPTURE(bits);
  for (const auto& [in, out] : std::vector<std::pair<std::size_t, std::size_t>>{
           {64, 1}, {128, 64}, {192, 33}, {320, 150}, {640, 97}, {170, 70}}) {
    if (bits == 4 && in % 64 != 0) continue;
    const BlockMatrix matrix = quantized(drawn(out, in, 4), bits);
    REQUIRE(fits_tiles(matrix));
    const DenseInput x = group_inputs(100, in);
    for (const std::size_t rows : kTileTestRows) {
      check_on_tiles(matrix, x, rows, 0, matrix.num_panels(), /*add=*/rows % 2 == 0);
    }
  }
}

TEST_CASE("on tiles one scope of a thread serves products of blocks and of floats", "[rows][amx]") {
  const BlockMatrix matrix = quantized(drawn(130, 256, 4), 4);
  const DenseInput x = group_inputs(20, 256);
  const TileScope step;
  for (int i = 0; i < 2; ++i) {
    check_on_tiles(matrix, x, 20, 0, matrix.num_panels(), /*add=*/false);
    for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
      if (amx_available()) CHECK(multiplies_as_twin(type, multiply_on_amx));
    }
  }
}

TEST_CASE("tiles are taken for many rows of whole tiles of inputs", "[rows][amx]") {
  CHECK(fits_tiles(quantized(drawn(10, 128, 4), 4)));
  CHECK_FALSE(fits_tiles(quantized(drawn(10, 160, 4), 4)));  // five groups of 32
  CHECK_FALSE(fits_tiles(Stored(DType::kQ6_K, 256, 10).matrix()));
  const std::string vectors = block_product_description();
  if (vectors.starts_with("amx_int8")) return;  // here they are taken anyway
  use_twin_tiles(true);
  CHECK(block_product_description() == "amx_int8 (twin), below 8 rows " + vectors);
  const BlockMatrix matrix = quantized(drawn(130, 160, 4), 4);
  const DenseInput x = group_inputs(20, 160);
  const std::vector<float> y = product(matrix, x, 0, 20);  // by vectors, as it does not fit
  use_twin_tiles(false);
  CHECK(equal_floats(product(matrix, x, 0, 20), y));
}

TEST_CASE("tiles that compute other sums of blocks than they should are found out", "[amx]") {
  CHECK(multiplies_blocks_exactly(multiply_blocks_on_twin_tiles));
  CHECK(multiplies_blocks_exactly([](const BlockProduct& product) { multiply(product); }));
  CHECK_FALSE(multiplies_blocks_exactly([](const BlockProduct& product) {
    multiply(product);
    float& last = product.y.row(product.y.rows() - 1).back();
    last = std::nextafter(last, 1e9f);
  }));
  if (amx_available()) CHECK(amx_is_right(WeightType::kBlocks));
}

}  // namespace
}  // namespace lintel
