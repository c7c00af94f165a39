#include "model/dense.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "model/dense_kernels.h"
#include "tests/model/instruction_sets.h"
#include "tests/model/reference.h"

namespace lintel {
namespace {

Matrix normal_matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(generator);
  return matrix;
}

struct Problem {
  Problem(std::size_t in, std::size_t out)
      : in_features(in),
        out_features(out),
        weight(normal_matrix(out, in, 1)),
        bias(normal_matrix(1, out, 2)) {}
  Dense dense(Dense::Fused fused = Dense::Fused::kNone) const {
    return Dense(weight.values(), bias.values(), in_features, out_features, {.fused = fused});
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
      dense.apply(x.view(), y.view());
      CAPTURE(in, out, static_cast<int>(fused));
      CHECK(largest_error(problem, x, y, fused) <= 2e-5);
    }
  }
}

TEST_CASE("a row has the same bits alone and among any number of rows", "[rows]") {
  const std::vector<std::pair<std::size_t, std::size_t>> shapes = {
      {256, 768}, {256, 256}, {256, 1024}, {1024, 256}, {256, 30}, {64, 256}, {33, 17}};
  constexpr std::size_t kRows = 260;  // beyond what one product takes
  for (const auto& [in, out] : shapes) {
    const Problem problem(in, out);
    for (const auto fused : {Dense::Fused::kNone, Dense::Fused::kRelu, Dense::Fused::kGelu}) {
      const Dense dense = problem.dense(fused);
      const Matrix x = normal_matrix(kRows, in, 3);
      Matrix alone(kRows, out);
      Matrix together(kRows, out);
      for (std::size_t r = 0; r < kRows; ++r) {
        dense.apply(x.view().rows_from(r, 1), alone.view().rows_from(r, 1));
      }
      const bool all_counts = in == 256 && fused == Dense::Fused::kNone;
      for (std::size_t rows = 1; rows <= kRows; rows += all_counts || rows < 17 ? 1 : 27) {
        // The last rows of x, so that a row's index changes too.
        const std::size_t first = kRows - rows;
        dense.apply(x.view().rows_from(first, rows), together.view().rows_from(0, rows));
        CAPTURE(in, out, rows, static_cast<int>(fused));
        REQUIRE(same_bits(together.view().rows_from(0, rows), alone.view().rows_from(first, rows)));
      }
    }
  }
}

TEST_CASE("rows with gaps between them have the bits of rows without", "[rows]") {
  const Problem problem(48, 40);
  const Dense dense = problem.dense(Dense::Fused::kRelu);
  const Matrix x = normal_matrix(6, 48, 3);
  Matrix wide_x(6, 61);
  for (std::size_t r = 0; r < 6; ++r) {
    std::copy(x.row(r).begin(), x.row(r).end(), wide_x.row(r).begin() + 5);
  }
  Matrix y(6, 40);
  Matrix wide_y(6, 57);
  dense.apply(x.view(), y.view());
  dense.apply(wide_x.view().cols_from(5, 48), wide_y.view().cols_from(3, 40));
  CHECK(same_bits(wide_y.view().cols_from(3, 40), y.view()));
  for (std::size_t r = 0; r < 6; ++r) {
    CHECK(wide_y.row(r)[2] == 0.0f);
    CHECK(wide_y.row(r)[43] == 0.0f);
  }
}

TEST_CASE("threads that share a layer get the same bits", "[rows]") {
  const Problem problem(256, 256);
  const Dense dense = problem.dense();
  const Matrix x = normal_matrix(20, 256, 3);
  Matrix expected(20, 256);
  dense.apply(x.view(), expected.view());
  std::vector<Matrix> results(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i] = Matrix(20, 256);
    threads.emplace_back([&, i] {
      for (std::size_t rows = 1; rows <= 20; ++rows) {
        dense.apply(x.view().rows_from(0, rows), results[i].view().rows_from(0, rows));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Matrix& result : results) CHECK(same_bits(result.view(), expected.view()));
}

TEST_CASE("our own panels agree with the formula, and rows do not see each other", "[rows]") {
  testing::for_each_instruction_set([] {
    for (const std::size_t in : {1, 2, 17, 64, 257}) {
      for (const std::size_t out : {1, 15, 16, 17, 30, 64, 129, 300}) {
        const Problem problem(in, out);
        const PackedPanels panels(problem.weight.values(), problem.bias.values(), in, out);
        const Matrix x = normal_matrix(27, in, 3);
        Matrix alone(27, out);
        for (std::size_t r = 0; r < x.rows(); ++r) {
          multiply_panels(panels, x.view().rows_from(r, 1), alone.view().rows_from(r, 1));
        }
        CAPTURE(in, out);
        CHECK(largest_error(problem, x, alone) <= 1e-4);
        for (std::size_t rows = 2; rows <= x.rows(); ++rows) {
          Matrix together(rows, out);
          multiply_panels(panels, x.view().rows_from(0, rows), together.view());
          CAPTURE(rows);
          REQUIRE(same_bits(together.view(), alone.view().rows_from(0, rows)));
        }
      }
    }
  });
}

TEST_CASE("weight types this build lacks are refused by name") {
  const Problem problem(4, 4);
  const auto make = [&](WeightType type) {
    Dense(problem.weight.values(), problem.bias.values(), 4, 4, {.weight_type = type});
  };
  CHECK_THROWS_WITH(make(WeightType::kBf16), Catch::Contains("bf16"));
  CHECK_THROWS_WITH(make(WeightType::kInt8), Catch::Contains("int8"));
  CHECK_THROWS_AS(make(WeightType::kInt8), std::invalid_argument);
}

TEST_CASE("a moved layer works and its weights are counted") {
  const Problem problem(32, 16);
  Dense dense = problem.dense();
  const Dense moved = std::move(dense);
  const Matrix x = normal_matrix(2, 32, 3);
  Matrix y(2, 16);
  moved.apply(x.view(), y.view());
  CHECK(largest_error(problem, x, y) <= 2e-5);
  CHECK(moved.in_features() == 32);
  CHECK(moved.out_features() == 16);
  CHECK(moved.weight_bytes() >= (32 + 1) * 16 * sizeof(float));
}

TEST_CASE("the kernels in use have a name", "[rows]") {
  const std::string name = dense_kernels_description();
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  CAPTURE(name);
  if (limit != nullptr && std::string(limit) == "AVX2") {
    CHECK(name.find("highway (") == 0);
    CHECK(name.find("AVX3") == std::string::npos);
  } else {
    CHECK((name.find("highway (") == 0 || name.find("onednn (avx512") == 0));
  }
}

}  // namespace
}  // namespace lintel
