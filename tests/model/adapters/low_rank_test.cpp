// SPDX-License-Identifier: Apache-2.0
// What an adapter adds to a product, against the formula in double.
#include "model/lora/low_rank.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/catch.h"

namespace lintel {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Matrices of one module, and rows that begin at any address.
struct LowRankCase {
  LowRankCase(std::size_t in_features, std::size_t of_rank, std::size_t out_features)
      : in(in_features),
        rank(of_rank),
        out(out_features),
        a(random_floats(rank * in, 1)),
        b(random_floats(out * rank, 2)),
        x(random_floats(kRows * (in + 3) + 1, 3)),
        y(random_floats(kRows * (out + 5) + 1, 4)) {
    matrices.a = LowRankInput(in, rank);
    matrices.b = LowRankOutput(out, rank);
    matrices.a.assign(a);
    matrices.b.assign(b);
    matrices.scaling = 0.5f;
  }

  // y after the rows were added, from the same y every time.
  std::vector<float> added(std::span<const std::uint32_t> rows) const {
    std::vector<float> result = y;
    matrices.add(rows, {x.data() + 1, kRows, in, in + 3}, {result.data() + 1, kRows, out, out + 5});
    return result;
  }

  double expected(std::size_t row, std::size_t o) const {
    double sum = 0.0;
    for (std::size_t j = 0; j < rank; ++j) {
      double h = 0.0;
      for (std::size_t i = 0; i < in; ++i) h += double{a[j * in + i]} * x[1 + row * (in + 3) + i];
      sum += double{b[o * rank + j]} * h;
    }
    return y[1 + row * (out + 5) + o] + 0.5 * sum;
  }

  static constexpr std::size_t kRows = 9;
  std::size_t in, rank, out;
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [out, rank]
  std::vector<float> x;
  std::vector<float> y;
  LowRank matrices;
};

}  // namespace

TEST_CASE("an adapter adds scaling B (A x), at every small size", "[rows]") {
  for (const std::size_t in : {1, 2, 3, 8, 17, 64}) {
    for (const std::size_t rank : {1, 2, 7, 8, 9, 16, 33}) {
      for (const std::size_t out : {1, 3, 15, 16, 17, 31, 63, 64, 65, 130}) {
        CAPTURE(in, rank, out);
        const LowRankCase c(in, rank, out);
        const std::vector<std::uint32_t> rows = {0, 2, 3, 4, 5, 7, 8};
        const std::vector<float> result = c.added(rows);
        const double tolerance = 1e-6 * std::sqrt(static_cast<double>(in * rank)) * 20;
        for (const std::uint32_t r : rows) {
          for (std::size_t o = 0; o < out; ++o) {
            const float found = result[1 + r * (out + 5) + o];
            REQUIRE(std::abs(found - c.expected(r, o)) <= tolerance);
          }
        }
        // Neither the other rows nor what lies between them.
        std::vector<float> rest = result;
        for (const std::uint32_t r : rows) {
          std::copy_n(c.y.begin() + 1 + r * (out + 5), out, rest.begin() + 1 + r * (out + 5));
        }
        REQUIRE(rest == c.y);
      }
    }
  }
}

TEST_CASE("batch invariance: a row has the same bits with any other rows", "[rows]") {
  for (const std::size_t rank : {1, 5, 8, 20}) {
    const LowRankCase c(37, rank, 83);
    std::vector<std::uint32_t> rows;
    for (std::uint32_t count = 1; count <= LowRankCase::kRows; ++count) {
      rows.push_back(LowRankCase::kRows - count);
      const std::vector<float> together = c.added(rows);
      for (const std::uint32_t r : rows) {
        const std::vector<float> alone = c.added({&r, 1});
        const std::size_t first = 1 + r * (c.out + 5);
        CAPTURE(rank, count, r);
        REQUIRE(std::memcmp(&together[first], &alone[first], c.out * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("numbers of an embedding's column are multiplied as those of a row", "[rows]") {
  const LowRankCase c(1, 6, 50);
  const std::vector<float> h = random_floats(6, 7);
  std::vector<float> y(50, 1.0f);
  add_low_rank(c.matrices.b, 0.25f, h, y);
  for (std::size_t o = 0; o < y.size(); ++o) {
    double sum = 0.0;
    for (std::size_t j = 0; j < 6; ++j) sum += double{c.b[o * 6 + j]} * h[j];
    CHECK(y[o] == Approx(1.0 + 0.25 * sum).margin(1e-5));
  }
}

}  // namespace lintel
