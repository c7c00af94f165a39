// SPDX-License-Identifier: Apache-2.0
#include "model/ops/dense.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "model/core/float_formats.h"
#include "model/core/kernels.h"
#include "model/core/random.h"
#include "model/core/sha256.h"
#include "model/formats/safetensors.h"
#include "model/ops/dense_kernels.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/model/support/reference.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

Matrix normal_matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(generator);
  return matrix;
}

// Rows as a layer reads them.
DenseInput input_of(const Dense& dense, MatrixView<const float> x,
                    DenseInput::Range range = DenseInput::Range::kSigned) {
  DenseInput input(dense.weight_type(), x.rows(), x.cols(), range);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    std::ranges::copy(x.row(r), input.values().row(r).begin());
  }
  input.prepare(0, x.rows());
  return input;
}

void apply(const Dense& dense, MatrixView<const float> x, MatrixView<float> y) {
  dense.apply(input_of(dense, x), y);
}

struct Problem {
  Problem(std::size_t in, std::size_t out)
      : in_features(in),
        out_features(out),
        weight(normal_matrix(out, in, 1)),
        bias(normal_matrix(1, out, 2)) {}
  Dense dense(Dense::Fused fused = Dense::Fused::kNone, WeightType type = WeightType::kF32) const {
    return Dense(weight.values(), bias.values(), in_features, out_features,
                 {.weight_type = type, .fused = fused});
  }
  std::size_t in_features;
  std::size_t out_features;
  Matrix weight;
  Matrix bias;
};

double activated(double y, Dense::Fused fused) {
  if (fused == Dense::Fused::kRelu) return std::max(y, 0.0);
  return fused == Dense::Fused::kGelu ? testing::exact_gelu(y) : y;
}

double largest_error(const Problem& problem, const Matrix& x, const Matrix& y,
                     Dense::Fused fused = Dense::Fused::kNone) {
  double largest = 0.0;
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const testing::Row expected = testing::dense_reference(
        {x.row(r).begin(), x.row(r).end()}, problem.weight.values(), problem.bias.values());
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const double difference = std::abs(y.row(r)[n] - activated(expected[n], fused));
      if (!(difference <= largest)) largest = difference;  // NaN counts
    }
  }
  return largest;
}

bool same_bits(MatrixView<const float> a, MatrixView<const float> b) {
  for (std::size_t r = 0; r < a.rows(); ++r) {
    if (std::memcmp(a.row(r).data(), b.row(r).data(), a.cols() * sizeof(float)) != 0) return false;
  }
  return true;
}

const std::vector<std::size_t> kSizes = {1, 2, 3, 7, 8, 15, 16, 17, 30, 31, 33, 48, 64, 65};

TEST_CASE("a dense layer agrees with its formula for odd shapes", "[rows]") {
  for (const std::size_t in : kSizes) {
    for (const std::size_t out : kSizes) {
      const Problem problem(in, out);
      const auto fused = static_cast<Dense::Fused>((in + out) % 3);
      const Dense dense = problem.dense(fused);
      const Matrix x = normal_matrix(5, in, 3);
      Matrix y(5, out);
      apply(dense, x.view(), y.view());
      CAPTURE(in, out, static_cast<int>(fused));
      CHECK(largest_error(problem, x, y, fused) <= 2e-5);
    }
  }
}

TEST_CASE("a row has the same bits alone and among any number of rows", "[rows][smoke]") {
  const std::vector<std::pair<std::size_t, std::size_t>> shapes = {
      {256, 768}, {256, 256}, {256, 1024}, {1024, 256}, {256, 30}, {64, 256}, {33, 17}, {150, 70}};
  constexpr std::size_t kRows = 70;
  const WeightType type = GENERATE(from_range(kWeightTypes));
  for (const auto& [in, out] : shapes) {
    const Problem problem(in, out);
    for (const auto fused : {Dense::Fused::kNone, Dense::Fused::kRelu, Dense::Fused::kGelu}) {
      const Dense dense = problem.dense(fused, type);
      const Matrix x = normal_matrix(kRows, in, 3);
      Matrix alone(kRows, out);
      Matrix together(kRows, out);
      for (std::size_t r = 0; r < kRows; ++r) {
        apply(dense, x.view().rows_from(r, 1), alone.view().rows_from(r, 1));
      }
      const bool all_counts = in == 256 && fused == Dense::Fused::kNone;
      for (std::size_t rows = 1; rows <= kRows; rows += all_counts || rows < 17 ? 1 : 27) {
        // The last rows of x, so that a row's index changes too.
        const std::size_t first = kRows - rows;
        apply(dense, x.view().rows_from(first, rows), together.view().rows_from(0, rows));
        CAPTURE(in, out, rows, static_cast<int>(fused), to_string(type));
        REQUIRE(same_bits(together.view().rows_from(0, rows), alone.view().rows_from(first, rows)));
      }
    }
  }
}

TEST_CASE("weights that are read for every product have the bits of those that are kept",
          "[rows]") {
  for (const auto& [in, out] :
       {std::pair<std::size_t, std::size_t>{33, 17}, {700, 900}, {64, 65}}) {
    const Problem problem(in, out);
    std::size_t most_rows = 0;
    const ReadWeightRows read = [&](std::size_t first, MatrixView<float> rows) {
      most_rows = std::max(most_rows, rows.rows());
      for (std::size_t r = 0; r < rows.rows(); ++r) {
        std::ranges::copy(problem.weight.row(first + r), rows.row(r).begin());
      }
    };
    const Matrix x = normal_matrix(5, in, 3);
    for (const auto fused : {Dense::Fused::kNone, Dense::Fused::kRelu, Dense::Fused::kGelu}) {
      const Dense::Options options{.fused = fused, .kernels = KernelChoice::kOwn, .streams = true};
      const Dense streamed(read, problem.bias.values(), in, out, options);
      const Dense kept(problem.weight.values(), problem.bias.values(), in, out,
                       {.fused = fused, .kernels = KernelChoice::kOwn});
      CHECK(streamed.weight_bytes() == out * sizeof(float));
      Matrix y(5, out);
      Matrix expected(5, out);
      for (const auto output :
           {Dense::Output::kStore, Dense::Output::kStoreUnfused, Dense::Output::kAdd}) {
        if (output == Dense::Output::kAdd && fused != Dense::Fused::kNone) continue;
        streamed.apply(input_of(streamed, x.view()), y.view(), output);
        kept.apply(input_of(kept, x.view()), expected.view(), output);
        CAPTURE(in, out, static_cast<int>(fused), static_cast<int>(output));
        CHECK(same_bits(y.view(), expected.view()));
      }
      std::vector<float> row(in);
      streamed.row(out - 1, row);
      CHECK(std::ranges::equal(row, problem.weight.row(out - 1)));
    }
    CHECK(most_rows <= 64);
  }
}

TEST_CASE("an activation that follows has the bits of the fused one", "[rows]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  for (const auto fused : {Dense::Fused::kNone, Dense::Fused::kRelu, Dense::Fused::kGelu}) {
    for (const auto& [in, out] : {std::pair(256, 1024), std::pair(33, 17), std::pair(64, 65)}) {
      const Problem problem(static_cast<std::size_t>(in), static_cast<std::size_t>(out));
      const Dense dense = problem.dense(fused, type);
      const Matrix x = normal_matrix(9, problem.in_features, 3);
      for (const std::size_t rows : {1, 2, 7, 9}) {
        Matrix at_once(rows, problem.out_features);
        Matrix later(rows, problem.out_features);
        const DenseInput input = input_of(dense, x.view().rows_from(0, rows));
        dense.apply(input, at_once.view());
        dense.apply(input, later.view(), Dense::Output::kStoreUnfused);
        const bool differ = !same_bits(later.view(), at_once.view());
        CAPTURE(in, out, rows, static_cast<int>(fused), to_string(type));
        CHECK(differ == (fused != Dense::Fused::kNone));
        dense.fuse(later.view());
        CHECK(same_bits(later.view(), at_once.view()));
      }
    }
  }
}

TEST_CASE("outputs that go into the next layer's input have the bits of two steps", "[rows]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const auto fused = GENERATE(Dense::Fused::kNone, Dense::Fused::kRelu, Dense::Fused::kGelu);
  const auto range =
      fused == Dense::Fused::kRelu ? DenseInput::Range::kNonNegative : DenseInput::Range::kSigned;
  for (const auto& [in, out] : {std::pair(256, 1024), std::pair(33, 17), std::pair(64, 65)}) {
    const Problem problem(static_cast<std::size_t>(in), static_cast<std::size_t>(out));
    const Dense dense = problem.dense(fused, type);
    const Matrix x = normal_matrix(40, problem.in_features, 3);
    const DenseInput input = input_of(dense, x.view());
    for (const std::size_t rows : {1, 7, 16, 33, 40}) {
      DenseInput expected(type, 40, problem.out_features, range);
      DenseInput y(type, 40, problem.out_features, range);
      dense.apply(input, expected.values().rows_from(0, rows));
      expected.prepare(0, rows);
      const bool is_prepared = dense.apply_into(input, rows, y);
      if (!is_prepared) y.prepare(0, rows);
      const std::string kernels = dense.kernels();
      CAPTURE(in, out, rows, static_cast<int>(fused), kernels);
      CHECK(is_prepared == (fused == Dense::Fused::kRelu && kernels.starts_with("amx_bf16")));
      CHECK(std::memcmp(y.cells(), expected.cells(), 40 * y.stride() * 4) == 0);
      if (type != WeightType::kInt8) continue;
      CHECK(std::memcmp(y.scales(), expected.scales(), 40 * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("prefetching during a product changes no bits", "[rows]") {
  const Problem problem(100, 130);
  const Matrix x = normal_matrix(17, 100, 3);
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const std::vector<float> soon(40 * 1000);
  testing::for_each_instruction_set([&] {
    const Dense dense = problem.dense(Dense::Fused::kNone, type);
    for (const std::size_t rows : {1u, 2u, 3u, 6u, 7u, 12u, 16u, 17u}) {
      Matrix expected(rows, 130), y(rows, 130);
      const DenseInput input = input_of(dense, x.view().rows_from(0, rows));
      dense.apply(input, expected.view());
      PrefetchList prefetch;
      for (std::size_t i = 0; i < 40; ++i) prefetch.add({soon.data() + i * 1000, 1000});
      dense.apply(input, y.view(), Dense::Output::kStore, &prefetch);
      CAPTURE(rows, to_string(type));
      CHECK(same_bits(y.view(), expected.view()));
      const std::string kernels = dense.kernels();
      if (kernels == multiply_description(type) && !kernels.starts_with("amx_")) {
        CHECK(prefetch.take(1) != soon.data());  // some of it was asked for
      }
    }
  });
}

TEST_CASE("a prefetch list gives its blocks from first to last, whole lines at a time") {
  const std::vector<float> memory(1000);
  PrefetchList list;
  CHECK(list.take(1) == nullptr);
  list.add({memory.data(), 100});
  list.add({});
  list.add({memory.data() + 500, 16});
  CHECK(list.take(4) == memory.data());
  CHECK(list.take(4) == memory.data() + 64);  // 36 floats are left
  CHECK(list.take(1) == memory.data() + 500);
  CHECK(list.take(1) == nullptr);
  list.add({memory.data() + 700, 16});
  CHECK(list.take(9) == memory.data() + 700);
  list.clear();
  CHECK(list.take(1) == nullptr);
}

TEST_CASE("outputs may have gaps between their rows", "[rows]") {
  const Problem problem(48, 40);
  const Dense dense = problem.dense(Dense::Fused::kRelu);
  const Matrix x = normal_matrix(6, 48, 3);
  Matrix y(6, 40);
  Matrix wide_y(6, 57);
  apply(dense, x.view(), y.view());
  apply(dense, x.view(), wide_y.view().cols_from(3, 40));
  CHECK(same_bits(wide_y.view().cols_from(3, 40), y.view()));
  for (std::size_t r = 0; r < 6; ++r) {
    CHECK(wide_y.row(r)[2] == 0.0f);
    CHECK(wide_y.row(r)[43] == 0.0f);
  }
}

TEST_CASE("a residual is added to, with the bits of an addition afterwards", "[rows]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  for (const std::size_t out : {1, 17, 64, 100}) {
    const Problem problem(33, out);
    const Dense dense = problem.dense(Dense::Fused::kNone, type);
    const Matrix x = normal_matrix(9, 33, 3);
    Matrix y(9, out);
    Matrix sum = normal_matrix(9, out, 4);
    Matrix expected = normal_matrix(9, out, 4);
    dense.apply(input_of(dense, x.view()), y.view());
    for (std::size_t i = 0; i < y.values().size(); ++i) expected.values()[i] += y.values()[i];
    dense.apply(input_of(dense, x.view()), sum.view(), Dense::Output::kAdd);
    CAPTURE(out, to_string(type));
    CHECK(same_bits(sum.view(), expected.view()));
  }
}

TEST_CASE("threads that share a layer get the same bits", "[rows][threads]") {
  const Problem problem(256, 256);
  const Dense dense = problem.dense();
  const Matrix x = normal_matrix(20, 256, 3);
  Matrix expected(20, 256);
  apply(dense, x.view(), expected.view());
  std::vector<Matrix> results(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i] = Matrix(20, 256);
    threads.emplace_back([&, i] {
      for (std::size_t rows = 1; rows <= 20; ++rows) {
        apply(dense, x.view().rows_from(0, rows), results[i].view().rows_from(0, rows));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Matrix& result : results) CHECK(same_bits(result.view(), expected.view()));
}

// The definition of each weight type's product, in double precision.
struct Rounded {
  Rounded(const Problem& problem, MatrixView<const float> rows, WeightType type,
          DenseInput::Range range)
      : weight(problem.weight.values().begin(), problem.weight.values().end()), x(rows.rows()) {
    for (std::size_t n = 0; n < problem.out_features; ++n) {
      round(std::span(weight).subspan(n * problem.in_features, problem.in_features), type,
            DenseInput::Range::kSigned);
    }
    for (std::size_t r = 0; r < rows.rows(); ++r) {
      x[r].assign(rows.row(r).begin(), rows.row(r).end());
      round(x[r], type, range);
    }
  }

  static void round(std::span<double> values, WeightType type, DenseInput::Range range) {
    double largest = 0.0;
    for (const double value : values) largest = std::max(largest, std::abs(value));
    const float levels = range == DenseInput::Range::kSigned ? 127.0f : 255.0f;
    const float scale = largest == 0.0 ? 1.0f : static_cast<float>(largest) / levels;
    for (double& value : values) {
      const auto single = static_cast<float>(value);
      if (type == WeightType::kBf16) value = bf16_to_f32(f32_to_bf16(single));
      if (type == WeightType::kInt8) value = std::nearbyint(single / scale) * double{scale};
    }
  }

  double output(const Problem& problem, std::size_t r, std::size_t n) const {
    double sum = problem.bias.values()[n];
    for (std::size_t k = 0; k < x[r].size(); ++k) sum += x[r][k] * weight[n * x[r].size() + k];
    return sum;
  }

  std::vector<double> weight;
  std::vector<std::vector<double>> x;
};

TEST_CASE("every weight type computes what its rounding says", "[rows][smoke]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const auto range = GENERATE(DenseInput::Range::kSigned, DenseInput::Range::kNonNegative);
  testing::for_each_instruction_set([&] {
    for (const std::size_t in : {1, 2, 3, 4, 17, 64, 257}) {
      for (const std::size_t out : {1, 15, 16, 17, 30, 64, 129}) {
        const Problem problem(in, out);
        const Dense dense = problem.dense(Dense::Fused::kNone, type);
        Matrix x = normal_matrix(13, in, 3);
        if (range == DenseInput::Range::kNonNegative) {
          for (float& value : x.values()) value = std::max(value, 0.0f);
        }
        Matrix y(13, out);
        dense.apply(input_of(dense, x.view(), range), y.view());
        const Rounded rounded(problem, x.view(), type, range);
        double largest = 0.0;
        for (std::size_t r = 0; r < x.rows(); ++r) {
          for (std::size_t n = 0; n < out; ++n) {
            const double difference = std::abs(y.row(r)[n] - rounded.output(problem, r, n));
            if (!(difference <= largest)) largest = difference;  // NaN counts
          }
        }
        CAPTURE(to_string(type), in, out);
        // A level of int8 on the border between two may be rounded either way.
        CHECK(largest <= (type == WeightType::kInt8 ? 2e-3 : 2e-4));
      }
    }
  });
}

TEST_CASE("int8 sums are exact: every kernel gives the same bits", "[rows]") {
  for (const auto& [in, out] : std::vector<std::pair<int, int>>{{256, 192}, {1024, 64}, {50, 70}}) {
    const Problem problem(in, out);
    const PackedWeights weights(WeightType::kInt8, problem.weight.values(), problem.bias.values(),
                                in, out);
    DenseInput input(WeightType::kInt8, 23, in);
    const Matrix x = normal_matrix(23, in, 3);
    for (std::size_t r = 0; r < x.rows(); ++r) {
      std::ranges::copy(x.row(r), input.values().row(r).begin());
    }
    input.prepare(0, 23);
    Matrix fast(23, out);
    Matrix portable(23, out);
    Product product{.weights = &weights,
                    .x = input.cells(),
                    .x_stride = input.stride(),
                    .x_scales = input.scales(),
                    .x_zero = input.zero(),
                    .rows = 23,
                    .y = fast.view().data(),
                    .y_stride = fast.cols()};
    multiply(product);
    product.y = portable.view().data();
    multiply(product, /*portable=*/true);
    CHECK(same_bits(fast.view(), portable.view()));
  }
}

// Numbers that every machine draws alike.
Matrix uniform_matrix(std::size_t rows, std::size_t cols, std::uint64_t seed) {
  Matrix matrix(rows, cols);
  std::uint32_t index = 0;
  const DrawSource draw{.seed = seed, .position = 0};
  for (float& value : matrix.values()) value = static_cast<float>(draw.uniform(index++) - 0.5);
  return matrix;
}

// The hash of the outputs on AVX2, AVX-512, AMX and NEON.
TEST_CASE("int8 has the same bits on every machine with fused multiply-adds", "[rows]") {
  if (kernel_target() == "EMU128") return;
  Sha256 hash;
  for (const auto& [in, out] : std::vector<std::pair<int, int>>{{256, 192}, {1024, 64}, {50, 70}}) {
    const Matrix weight = uniform_matrix(out, in, 1);
    const Matrix bias = uniform_matrix(1, out, 2);
    const Matrix x = uniform_matrix(23, in, 3);
    for (const Dense::Fused fused : {Dense::Fused::kNone, Dense::Fused::kRelu}) {
      const Dense dense(weight.values(), bias.values(), in, out,
                        {.weight_type = WeightType::kInt8, .fused = fused});
      Matrix y(23, out);
      apply(dense, x.view(), y.view());
      const auto bytes = std::as_bytes(y.values());
      hash.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  CHECK(hash.hex() == "83e5787624bfe1b72f7345f37c2498edbc422ecbd9312a435bb3c268e5882683");
}

TEST_CASE("the largest int8 sums do not overflow or saturate", "[rows]") {
  constexpr std::size_t kIn = 65536;
  const std::vector<float> weight(kIn, 1.0f);
  const std::vector<float> bias(1, 0.0f);
  const Dense dense(weight, bias, kIn, 1, {.weight_type = WeightType::kInt8});
  DenseInput input(WeightType::kInt8, 1, kIn, DenseInput::Range::kNonNegative);
  std::ranges::fill(input.values().row(0), 1.0f);
  input.prepare(0, 1);
  Matrix y(1, 1);
  dense.apply(input, y.view());
  CHECK(y.row(0)[0] == Approx(65536.0));
  const std::vector<float> more(kIn + 1, 1.0f);
  CHECK_THROWS_WITH(Dense(more, bias, kIn + 1, 1, {.weight_type = WeightType::kInt8}),
                    Catch::Contains("65536"));
}

TEST_CASE("an input that is not finite gives outputs that are not", "[rows]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const auto bad =
      GENERATE(std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
               std::numeric_limits<float>::quiet_NaN());
  const Problem problem(40, 20);
  const auto fused = GENERATE(Dense::Fused::kNone, Dense::Fused::kRelu);
  const Dense dense = problem.dense(fused, type);
  Matrix x = normal_matrix(8, 40, 3);
  Matrix clean(8, 20);
  apply(dense, x.view(), clean.view());
  x.row(5)[39] = bad;
  Matrix y(8, 20);
  apply(dense, x.view(), y.view());
  CAPTURE(to_string(type), bad);
  CHECK_FALSE(all_finite(y.row(5)));
  for (const std::size_t r : {0, 1, 2, 3, 4, 6, 7}) {
    CHECK(same_bits(y.view().rows_from(r, 1), clean.view().rows_from(r, 1)));
  }
}

TEST_CASE("a moved layer works and its weights are counted") {
  const Problem problem(32, 16);
  Dense dense = problem.dense();
  const Dense moved = std::move(dense);
  const Matrix x = normal_matrix(2, 32, 3);
  Matrix y(2, 16);
  apply(moved, x.view(), y.view());
  CHECK(largest_error(problem, x, y) <= 2e-5);
  CHECK(moved.in_features() == 32);
  CHECK(moved.out_features() == 16);
  CHECK(moved.weight_bytes() >= (32 + 1) * 16 * sizeof(float));
}

TEST_CASE("the kernels in use have a name", "[rows]") {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  for (const WeightType type : kWeightTypes) {
    const std::string name = dense_kernels_description(type);
    CAPTURE(name);
    const bool is_ours = name.find("highway (") == 0;
    CHECK((is_ours || name.starts_with("avx512_") || name == "avx_vnni" ||
           name.starts_with("amx_") || name.starts_with("onednn (")));
    if (limit == nullptr || !std::string(limit).starts_with("AVX2")) continue;
    CHECK(!name.starts_with("avx512_"));
    CHECK(name.find("AVX3") == std::string::npos);
    if (std::string(limit) != "AVX2") continue;
    CHECK((is_ours || name.starts_with("onednn (below AVX-512)")));
  }
}

}  // namespace
}  // namespace lintel
