// SPDX-License-Identifier: Apache-2.0
#include "bench/generation_speed.h"
#include "tests/support/catch.h"

namespace lintel::bench {
namespace {

// The sum over all positions as integrated from `cost` at `count` of them.
template <typename Cost>
double integrated(std::int64_t steps, int count, Cost&& cost) {
  const std::vector<std::int64_t> positions = spread_positions(steps, count);
  std::vector<double> costs;
  for (const std::int64_t p : positions) costs.push_back(cost(static_cast<double>(p)));
  return integrate(positions, costs, steps);
}

template <typename Cost>
double summed(std::int64_t steps, Cost&& cost) {
  double sum = 0;
  for (std::int64_t p = 0; p < steps; ++p) sum += cost(static_cast<double>(p));
  return sum;
}

}  // namespace

TEST_CASE("positions reach from the first to the last and increase") {
  CHECK(spread_positions(783, 3) == std::vector<std::int64_t>{0, 391, 782});
  CHECK(spread_positions(4, 16) == std::vector<std::int64_t>{0, 1, 2, 3});
  for (const int count : {2, 5, 16, 100}) {
    const auto positions = spread_positions(3071, count);
    CHECK(positions.size() == static_cast<std::size_t>(count));
    CHECK(positions.front() == 0);
    CHECK(positions.back() == 3070);
    CHECK(std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) ==
          positions.end());
  }
}

TEST_CASE("a cost measured at every position is summed") {
  const auto cost = [](double p) { return 1 + p * p * p; };
  CHECK(integrated(16, 16, cost) == Approx(summed(16, cost)));
}

TEST_CASE("costs that are constant or linear in the position integrate exactly") {
  for (const std::int64_t steps : {1, 2, 29, 783, 3071}) {
    for (const int count : {2, 7, 16}) {
      const auto constant = [](double) { return 3.5; };
      const auto linear = [](double p) { return 2 + 0.25 * p; };
      CHECK(integrated(steps, count, constant) == Approx(summed(steps, constant)).epsilon(1e-12));
      CHECK(integrated(steps, count, linear) == Approx(summed(steps, linear)).epsilon(1e-12));
    }
  }
}

TEST_CASE("of a quadratic cost no more is added than is promised") {
  const auto quadratic = [](double p) { return p * p; };
  for (const int count : {4, 8, 16}) {
    const double ratio = integrated(3071, count, quadratic) / summed(3071, quadratic);
    CHECK(ratio >= 1);
    CHECK(ratio <= 1 + 0.5 / ((count - 1) * (count - 1)) * 1.001);
  }
}

TEST_CASE("beyond the outermost positions the cost stays as it was there") {
  const std::vector<std::int64_t> positions = {2, 4};
  const std::vector<double> costs = {10, 20};
  CHECK(integrate(positions, costs, 7) == Approx(10 + 10 + 10 + 15 + 20 + 20 + 20));
}

}  // namespace lintel::bench
