// SPDX-License-Identifier: Apache-2.0
#include "model/sampling/exponentials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> logits(std::size_t n, std::mt19937& generator) {
  std::normal_distribution<double> normal(0.0, 20.0);
  std::vector<double> x(n);
  for (double& value : x) value = normal(generator);
  return x;
}

TEST_CASE("the largest of any number of doubles, also where they are minus infinity", "[rows]") {
  std::mt19937 generator(1);
  testing::for_each_instruction_set([&] {
    for (std::size_t n = 1; n <= 40; ++n) {
      std::vector<double> x = logits(n, generator);
      CHECK(largest_of(x) == *std::max_element(x.begin(), x.end()));
      std::ranges::fill(x, -kInfinity);
      CHECK(largest_of(x) == -kInfinity);
    }
  });
}

TEST_CASE("the largest of any number of floats, and sums of doubles", "[rows]") {
  std::vector<double> sums;
  testing::for_each_instruction_set([&] {
    std::mt19937 same(4);
    for (std::size_t n = 1; n <= 150; ++n) {
      const std::vector<double> x = logits(n, same);
      const std::vector<float> floats(x.begin(), x.end());
      CHECK(largest_of(floats) == *std::ranges::max_element(floats));
      const double sum = sum_of(x);
      CHECK(std::abs(sum - std::accumulate(x.begin(), x.end(), 0.0)) <= 1e-12 * 20 * n);
      if (sums.size() < n) sums.push_back(sum);
      CHECK(sums[n - 1] == sum);  // on every machine
    }
  });
}

TEST_CASE("exponentials of floats are those of the same doubles", "[rows]") {
  std::mt19937 generator(5);
  testing::for_each_instruction_set([&] {
    for (std::size_t n = 1; n <= 40; ++n) {
      const std::vector<double> x = logits(n, generator);
      const std::vector<float> floats(x.begin(), x.end());
      const float highest = largest_of(floats);
      std::vector<double> expected(floats.begin(), floats.end()), got(n);
      exponentials_of(expected, highest, 0.7, expected);
      exponentials_of(floats, highest, 0.7, got);
      CHECK(got == expected);
    }
  });
}

TEST_CASE("exponentials are those of the standard library to 2 ulp", "[rows]") {
  std::mt19937 generator(2);
  testing::for_each_instruction_set([&] {
    for (std::size_t n = 1; n <= 40; ++n) {
      std::vector<double> x = logits(n, generator);
      if (n > 3) x[n / 2] = -kInfinity;
      if (n > 5) x[n / 3] = -1e300;
      const double highest = *std::max_element(x.begin(), x.end());
      for (const double divisor : {1.0, 0.5, 1e-3, 1e3}) {
        std::vector<double> e = x;
        exponentials_of(e, highest, divisor, e);
        for (std::size_t i = 0; i < n; ++i) {
          const double expected = std::exp((x[i] - highest) / divisor);
          CAPTURE(n, i, divisor, x[i], expected);
          // Results that are no normal numbers may be 0.
          REQUIRE(std::abs(e[i] - expected) <= 5e-16 * expected + 1e-305);
          if (x[i] == highest) REQUIRE(e[i] == 1.0);
          if (x[i] <= -1e300) REQUIRE(e[i] == 0.0);
        }
      }
    }
  });
}

TEST_CASE("sums of exponentials of any length are those of what would be written", "[rows]") {
  std::mt19937 generator(3);
  testing::for_each_instruction_set([&] {
    for (std::size_t n = 1; n <= 40; ++n) {
      const std::vector<double> drawn = logits(n, generator);
      const std::vector<float> x(drawn.begin(), drawn.end());
      const double highest = *std::max_element(x.begin(), x.end());
      double expected = 0.0;
      for (const float value : x) expected += std::exp(double{value} - highest);
      CAPTURE(n);
      REQUIRE(sum_of_exponentials(x, highest, 1.0) == Approx(expected).epsilon(1e-14));
      for (const double divisor : {1.0, 0.7}) {
        std::vector<double> e(n);
        exponentials_of(x, highest, divisor, e);
        const std::vector<double> doubles(x.begin(), x.end());
        REQUIRE(sum_of_exponentials(x, highest, divisor) == sum_of(e));
        REQUIRE(sum_of_exponentials(doubles, highest, divisor) == sum_of(e));
      }
    }
  });
}

}  // namespace
}  // namespace lintel
