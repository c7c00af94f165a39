// SPDX-License-Identifier: Apache-2.0
#include "model/layers/attention/common/lsh_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "model/core/tensor.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

std::size_t padded(std::size_t n) {
  return (n + kPlaneMultiple - 1) / kPlaneMultiple * kPlaneMultiple;
}

TEST_CASE("signed_argmax finds the first maximum of x and -x, for every length", "[rows]") {
  std::mt19937 generator(1);
  testing::for_each_instruction_set([&] {
    for (std::size_t n = 1; n <= 70; ++n) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<float> x(padded(n), 0.0f);
        // Few different values: many ties.
        for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(int(generator() % 7) - 3);
        std::vector<float> both(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
        for (std::size_t i = 0; i < n; ++i) both.push_back(-x[i]);
        const auto expected = std::max_element(both.begin(), both.end()) - both.begin();
        CAPTURE(n, x);
        REQUIRE(signed_argmax(x.data(), n) == static_cast<std::size_t>(expected));
      }
    }
    std::vector<float> nan(padded(5), 0.0f);
    std::fill_n(nan.begin(), 5, std::numeric_limits<float>::quiet_NaN());
    CHECK(signed_argmax(nan.data(), 5) < 10);
  });
}

TEST_CASE("normalize and project are what they say, for every length", "[rows]") {
  std::mt19937 generator(2);
  std::normal_distribution<float> normal;
  testing::for_each_instruction_set([&] {
    for (std::size_t n = 1; n <= 70; ++n) {
      CAPTURE(n);
      std::vector<float> x(n);
      for (float& value : x) value = 3.0f * normal(generator);
      double square = 0.0;
      for (const float value : x) square += double{value} * value;
      std::vector<float> k(n);
      normalize(x, k.data());
      for (std::size_t c = 0; c < n; ++c) {
        REQUIRE(std::abs(k[c] - x[c] / std::sqrt(square)) < 1e-6);
      }
      const std::size_t width = padded(n);
      std::vector<float> planes(n * width);
      for (float& value : planes) value = normal(generator);
      std::vector<float> projected(width);
      project(k, planes.data(), width, projected.data());
      for (std::size_t i = 0; i < width; ++i) {
        double expected = 0.0;
        for (std::size_t c = 0; c < n; ++c) expected += double{k[c]} * planes[c * width + i];
        REQUIRE(std::abs(projected[i] - expected) < 1e-5);
      }
    }
    const std::vector<float> zeros(5, 0.0f);
    std::vector<float> k(5, 1.0f);
    normalize(zeros, k.data());
    CHECK(k == zeros);
  });
}

TEST_CASE("a paged array grows without moving what it holds") {
  PagedArray<int> array(100);
  CHECK(array.bytes() == 0);
  std::vector<int*> pages;
  for (std::size_t n = 1; n <= 200; ++n) {
    array.grow_to(n);
    REQUIRE(array.num_pages() == n);
    REQUIRE(array.bytes() == PagedArray<int>::bytes_of(n, 100));
    int* const added = array.page(n - 1);
    REQUIRE(std::all_of(added, added + 100, [](int x) { return x == 0; }));
    std::fill_n(added, 100, static_cast<int>(n));
    pages.push_back(added);
    for (std::size_t i = 0; i < n; ++i) REQUIRE(array.page(i) == pages[i]);
  }
  array.grow_to(3);  // never shrinks
  CHECK(array.num_pages() == 200);

  PagedArray<int> copy(100);
  copy.grow_to(300);
  copy.assign(array);
  CHECK(copy.num_pages() == 200);
  CHECK(copy.bytes() == array.bytes());
  CHECK(copy.page(7) != array.page(7));
  CHECK(copy.page(7)[99] == 8);

  PagedArray<int> moved = std::move(copy);
  CHECK(moved.page(7)[99] == 8);
  CHECK(copy.bytes() == 0);  // NOLINT: a moved-from array is empty
  moved = PagedArray<int>(100);
  CHECK(moved.num_pages() == 0);
  array.clear();
  CHECK(array.bytes() == 0);
  array.grow_to(1);
  CHECK(array.page(0)[0] == 0);
}

}  // namespace
}  // namespace lintel
