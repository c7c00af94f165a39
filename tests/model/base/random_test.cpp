// SPDX-License-Identifier: Apache-2.0
#include "model/core/random.h"

#include <cmath>
#include <set>

#include "tests/support/catch.h"

namespace lintel {
namespace {

using Counter = std::array<std::uint32_t, 4>;

TEST_CASE("philox gives the published vectors") {
  // Random123 1.09, kat_vectors: philox4x32 10.
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) ==
        Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a draw depends on seed, position and index, and on nothing else") {
  CHECK(DrawSource{7, 3}.uniform(1) == DrawSource{7, 3}.uniform(1));
  std::set<double> draws;
  const std::uint64_t seeds[] = {0, 1, std::uint64_t{1} << 32, ~std::uint64_t{0}};
  const std::int64_t positions[] = {0, 1, 783, std::int64_t{1} << 40};
  for (const std::uint64_t seed : seeds) {
    for (const std::int64_t position : positions) {
      for (const std::uint32_t index : {0u, 1u, 2u}) {
        draws.insert(DrawSource{seed, position}.uniform(index));
      }
    }
  }
  CHECK(draws.size() == 4 * 4 * 3);
}

TEST_CASE("draws are uniform in the open interval") {
  constexpr int kDraws = 100000;
  constexpr int kBins = 20;
  double sum = 0.0;
  int bins[kBins] = {};
  for (int i = 0; i < kDraws; ++i) {
    const double u = DrawSource{42, i}.uniform(0);
    REQUIRE(u > 0.0);
    REQUIRE(u < 1.0);
    sum += u;
    ++bins[static_cast<int>(u * kBins)];
  }
  CHECK(std::abs(sum / kDraws - 0.5) < 5 * std::sqrt(1.0 / 12.0 / kDraws));
  double chi_squared = 0.0;
  for (const int count : bins) {
    const double expected = double{kDraws} / kBins;
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  CHECK(chi_squared < 43.8);  // 19 degrees of freedom: exceeded once in a thousand
}

}  // namespace
}  // namespace lintel
