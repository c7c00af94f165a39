// SPDX-License-Identifier: Apache-2.0
// Sigmoids and their like, of vectors: against the C++ library's functions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "model/ops/mixer_kernels.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

TEST_CASE("sigmoid and tanh and exp of a sigmoid follow the C++ library", "[rows]") {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-12.0f, 12.0f);
  testing::for_each_instruction_set([&] {
    for (const std::size_t n : {1, 7, 16, 33, 1000}) {
      std::vector<float> x(n);
      for (float& value : x) value = uniform(random);
      x[n / 2] = n % 2 == 0 ? 300.0f : -300.0f;  // far beyond where they are flat
      std::vector<float> sigmoids = x, tangents = x, decays = x;
      sigmoid(sigmoids);
      hyperbolic_tangent(tangents);
      exp_of_sigmoid(-0.6f, decays);
      for (std::size_t i = 0; i < n; ++i) {
        CAPTURE(n, x[i]);
        const double expected = 1.0 / (1.0 + std::exp(-double{x[i]}));
        CHECK(std::abs(sigmoids[i] - expected) <= 3e-7 * expected + 1e-30);
        CHECK(std::abs(tangents[i] - std::tanh(double{x[i]})) <= 3e-7);
        CHECK(std::abs(decays[i] - std::exp(double{-0.6f} * expected)) <= 3e-7);
      }
    }
  });
}

TEST_CASE("NaN stays NaN in sigmoids, tanh and silu", "[rows]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  testing::for_each_instruction_set([&] {
    for (const std::size_t n : {1, 16, 21}) {
      for (void (*const function)(std::span<float>) :
           {static_cast<void (*)(std::span<float>)>(sigmoid), hyperbolic_tangent, silu}) {
        std::vector<float> x(n, nan);
        function(x);
        CHECK(std::ranges::all_of(x, [](float value) { return std::isnan(value); }));
      }
      std::vector<float> decays(n, nan), gated(n, 1.0f);
      exp_of_sigmoid(-0.6f, decays);
      multiply_sigmoid(std::vector<float>(n, nan), gated);
      CHECK(std::ranges::all_of(decays, [](float value) { return std::isnan(value); }));
      CHECK(std::ranges::all_of(gated, [](float value) { return std::isnan(value); }));
    }
  });
}

TEST_CASE("RWKV-7's keys and outputs follow their formulas at every size", "[rows]") {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  testing::for_each_instruction_set([&] {
    for (const std::size_t n : {1, 7, 16, 33, 64, 1000}) {
      CAPTURE(n);
      std::vector<std::vector<float>> all(7, std::vector<float>(n));
      for (auto& row : all) std::ranges::generate(row, [&] { return normal(random); });
      const auto& [k_k, k_a, a, r, v, gate, y] =
          std::tie(all[0], all[1], all[2], all[3], all[4], all[5], all[6]);
      std::vector<float> before(n), unit(n), erase(n);
      std::ranges::generate(before, [&] { return normal(random); });
      std::vector<float> k = before, out = y;
      weigh_keys(k_k, k_a, a, k, unit);
      multiply_negated(a, unit, erase);
      add_bonus(r, k, k_a, v, gate, out);
      double bonus = 0;
      for (std::size_t i = 0; i < n; ++i) bonus += double{r[i]} * k[i] * k_a[i];
      for (std::size_t i = 0; i < n; ++i) {
        CAPTURE(i);
        CHECK(unit[i] == before[i] * k_k[i]);
        CHECK(k[i] == Approx(before[i] * (1.0 + (a[i] - 1.0) * k_a[i])).margin(1e-5));
        CHECK(erase[i] == -(a[i] * unit[i]));
        CHECK(out[i] == Approx((y[i] + bonus * v[i]) * gate[i]).epsilon(1e-4).margin(2e-3));
      }
    }
  });
}

TEST_CASE("an element's sigmoid does not depend on its place", "[rows]") {
  testing::for_each_instruction_set([&] {
    std::vector<float> alone = {0.37f}, tangent = alone, decay = alone;
    sigmoid(alone);
    hyperbolic_tangent(tangent);
    exp_of_sigmoid(-0.6f, decay);
    for (const std::size_t n : {5, 16, 31, 64}) {
      std::vector<float> sigmoids(n, 0.37f), tangents = sigmoids, decays = sigmoids;
      sigmoid(sigmoids);
      hyperbolic_tangent(tangents);
      exp_of_sigmoid(-0.6f, decays);
      CHECK(sigmoids == std::vector<float>(n, alone[0]));
      CHECK(tangents == std::vector<float>(n, tangent[0]));
      CHECK(decays == std::vector<float>(n, decay[0]));
    }
  });
}

}  // namespace
}  // namespace lintel
