// SPDX-License-Identifier: Apache-2.0
// Each kernel beside a naive twin, for every small size, misalignment and instruction set.
#include "model/core/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "model/layers/attention/common/sum_kernels.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/model/support/reference.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::Row;

constexpr std::size_t kLargestSize = 70;  // four AVX-512 vectors and some
constexpr std::size_t kOffsets = 5;       // floats off a 64-byte boundary

std::vector<float> normal_values(std::size_t count, float scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// A copy at a chosen distance from a 64-byte boundary, between guards that must not change.
class Misaligned {
 public:
  Misaligned(std::span<const float> values, std::size_t offset)
      : memory_(make_aligned<float>(values.size() + offset + kGuard)),
        offset_(offset),
        size_(values.size()) {
    std::fill_n(memory_.get(), offset + size_ + kGuard, kMark);
    std::copy(values.begin(), values.end(), memory_.get() + offset);
  }
  std::span<float> values() { return {memory_.get() + offset_, size_}; }
  float* data() { return memory_.get() + offset_; }
  bool guards_hold() const {
    const auto is_mark = [](float value) { return value == kMark; };
    return std::all_of(memory_.get(), memory_.get() + offset_, is_mark) &&
           std::all_of(memory_.get() + offset_ + size_, memory_.get() + offset_ + size_ + kGuard,
                       is_mark);
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static constexpr float kMark = 12345.0f;
  AlignedArray<float> memory_;
  std::size_t offset_;
  std::size_t size_;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double largest_difference(std::span<const float> values, const Row& expected) {
  double largest = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(values[i] - expected[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

// Runs `kernel` in place over every size and offset; the result must be near what `twin` says of
// each value and have the same bits at every offset.
template <typename Kernel, typename Twin>
void check_elementwise(float scale, double tolerance, Kernel kernel, Twin twin) {
  for (std::size_t n = 0; n <= kLargestSize; ++n) {
    const std::vector<float> input = normal_values(n, scale, static_cast<unsigned>(n));
    Row expected;
    for (const float value : input) expected.push_back(twin(double{value}));
    Misaligned first(input, 0);
    kernel(first.values());
    CAPTURE(n);
    CHECK(largest_difference(first.values(), expected) <= tolerance);
    for (std::size_t offset = 0; offset < kOffsets; ++offset) {
      Misaligned other(input, offset);
      kernel(other.values());
      CHECK(same_bits(other.values(), first.values()));
      CHECK(other.guards_hold());
    }
  }
}

TEST_CASE("relu, gelu and phi agree with their formulas at every size", "[rows]") {
  testing::for_each_instruction_set([] {
    check_elementwise(
        3.0f, 0.0, [](std::span<float> x) { relu(x); }, [](double x) { return std::max(x, 0.0); });
    check_elementwise(
        3.0f, 1e-6, [](std::span<float> x) { gelu(x); }, testing::exact_gelu);
    check_elementwise(
        3.0f, 2e-6, [](std::span<float> x) { elu_plus_one(x, x); }, testing::phi);
  });
}

TEST_CASE("activations hold at the far ends") {
  testing::for_each_instruction_set([] {
    const float huge = std::numeric_limits<float>::max();
    std::vector<float> x = {-huge, -1e4f, -100.0f, -20.0f, -0.0f, 0.0f, 100.0f, 1e4f, huge};
    std::vector<float> phi_x(x.size());
    elu_plus_one(x, phi_x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      CHECK(phi_x[i] == Approx(testing::phi(x[i])).margin(1e-7));
    }
    std::vector<float> y = x;
    gelu(y);
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      CHECK(y[i] == Approx(testing::exact_gelu(x[i])).epsilon(1e-6).margin(1e-6));
    }
  });
}

TEST_CASE("layer norm agrees with its formula, row by row", "[rows]") {
  testing::for_each_instruction_set([] {
    for (std::size_t n = 1; n <= kLargestSize; ++n) {
      const std::vector<float> input = normal_values(3 * n, 2.0f, 1);
      const std::vector<float> gain = normal_values(n, 1.0f, 2);
      const std::vector<float> bias = normal_values(n, 1.0f, 3);
      std::vector<float> together(3 * n);
      layer_norm({input.data(), 3, n, n}, gain, bias, 1e-5f, {together.data(), 3, n, n});
      CAPTURE(n);
      for (std::size_t r = 0; r < 3; ++r) {
        const std::span<const float> row(input.data() + r * n, n);
        const std::span<const float> result(together.data() + r * n, n);
        CHECK(largest_difference(result, testing::layer_norm_reference({row.begin(), row.end()},
                                                                       gain, bias, 1e-5)) <= 2e-5);
        Misaligned in_place(row, r + 1);
        Misaligned moved_gain(gain, r);
        layer_norm({in_place.data(), 1, n, n}, moved_gain.values(), bias, 1e-5f,
                   {in_place.data(), 1, n, n});
        CHECK(same_bits(in_place.values(), result));
        CHECK(in_place.guards_hold());
      }
    }
  });
}

TEST_CASE("layer norm of a row has the same bits alone and among others", "[rows]") {
  constexpr std::size_t kRows = 11;
  testing::for_each_instruction_set([] {
    for (const std::size_t n : {1u, 7u, 16u, 31u, 32u, 40u, 64u, 70u, 256u}) {
      const std::size_t stride = n + 3;
      const std::vector<float> x = normal_values(kRows * stride, 2.0f, 1);
      const std::vector<float> gain = normal_values(n, 1.0f, 2);
      const std::vector<float> bias = normal_values(n, 1.0f, 3);
      std::vector<float> alone(kRows * n);
      for (std::size_t r = 0; r < kRows; ++r) {
        layer_norm({x.data() + r * stride, 1, n, n}, gain, bias, 1e-5f,
                   {alone.data() + r * n, 1, n, n});
      }
      for (std::size_t rows = 1; rows <= kRows; ++rows) {
        const std::size_t first = kRows - rows;
        std::vector<float> y(rows * (n + 1), 12345.0f);
        layer_norm({x.data() + first * stride, rows, n, stride}, gain, bias, 1e-5f,
                   {y.data(), rows, n, n + 1});
        CAPTURE(n, rows);
        for (std::size_t r = 0; r < rows; ++r) {
          CHECK(same_bits({y.data() + r * (n + 1), n}, {alone.data() + (first + r) * n, n}));
          CHECK(y[r * (n + 1) + n] == 12345.0f);
        }
      }
    }
  });
}

TEST_CASE("layer norm survives a constant row and a large mean") {
  const std::vector<float> gain(40, 1.0f);
  const std::vector<float> bias(40, 0.0f);
  std::vector<float> x(40, 7.0f);
  layer_norm({x.data(), 1, 40, 40}, gain, bias, 1e-5f, {x.data(), 1, 40, 40});
  CHECK(*std::max_element(x.begin(), x.end()) == Approx(0.0f).margin(1e-3));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1000.0f + (i % 2 == 0 ? 1.0f : -1.0f);
  layer_norm({x.data(), 1, 40, 40}, gain, bias, 1e-5f, {x.data(), 1, 40, 40});
  CHECK(x[0] == Approx(1.0f).epsilon(1e-3));
  CHECK(x[1] == Approx(-1.0f).epsilon(1e-3));
}

TEST_CASE("linear attention agrees with its O(N^2) form at every head size", "[rows]") {
  constexpr std::size_t kTokens = 9;
  testing::for_each_instruction_set([] {
    for (std::size_t d_head = 1; d_head <= kLargestSize; ++d_head) {
      const std::size_t n_heads = 1 + d_head % 3;
      const std::size_t width = n_heads * d_head;
      const SumShape shape{
          .n_heads = n_heads, .n_features = d_head, .d_head = d_head, .eps = 1e-6f};
      const std::vector<float> s0(width * d_head, 0.0f);
      const std::vector<float> z0(width, 0.0f);
      Misaligned s(s0, d_head % kOffsets);
      Misaligned z(z0, 1);
      Misaligned s_aligned(s0, 0);
      Misaligned z_aligned(z0, 0);
      testing::Rows q;
      testing::Rows k;
      testing::Rows v;
      std::vector<std::vector<float>> outputs;
      bool same = true;
      for (std::size_t t = 0; t < kTokens; ++t) {
        const auto seed = static_cast<unsigned>(3 * t);
        const std::vector<float> token_q = normal_values(width, 1.0f, seed);
        const std::vector<float> token_k = normal_values(width, 1.0f, seed + 1);
        const std::vector<float> token_v = normal_values(width, 1.0f, seed + 2);
        q.emplace_back(token_q.begin(), token_q.end());
        k.emplace_back(token_k.begin(), token_k.end());
        v.emplace_back(token_v.begin(), token_v.end());
        std::vector<float> phi_q(width);
        std::vector<float> phi_k(width);
        elu_plus_one(token_q, phi_q);
        elu_plus_one(token_k, phi_k);
        Misaligned out(z0, 3);
        linear_attention_step(shape, static_cast<std::int64_t>(t), phi_q.data(), phi_k.data(),
                              token_v.data(), s.data(), z.data(), out.data());
        outputs.emplace_back(out.values().begin(), out.values().end());
        Misaligned shifted_v(token_v, 2);
        std::vector<float> again(width);
        linear_attention_step(shape, static_cast<std::int64_t>(t), phi_q.data(), phi_k.data(),
                              shifted_v.data(), s_aligned.data(), z_aligned.data(), again.data());
        same = same && same_bits(again, outputs.back()) && out.guards_hold();
      }
      CAPTURE(n_heads, d_head);
      CHECK(same);
      CHECK(s.guards_hold());
      CHECK(z.guards_hold());
      const testing::Rows expected = testing::linear_attention_reference(
          q, k, v, static_cast<int>(n_heads), static_cast<int>(d_head), 1e-6);
      double largest = 0.0;
      for (std::size_t t = 0; t < kTokens; ++t) {
        largest = std::max(largest, largest_difference(outputs[t], expected[t]));
      }
      CHECK(largest <= 5e-6);
    }
  });
}

TEST_CASE("one value that is not finite is found wherever it is") {
  testing::for_each_instruction_set([] {
    const float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t n = 0; n <= kLargestSize; ++n) {
      std::vector<float> x = normal_values(n, 1e38f, 1);
      for (float& value : x) value = std::isfinite(value) ? value : 1.0f;
      CHECK(all_finite(x));
      for (std::size_t i = 0; i < n; ++i) {
        for (const float bad : {infinity, -infinity, std::nanf("")}) {
          const float kept = std::exchange(x[i], bad);
          if (all_finite(x)) FAIL("missed " << bad << " at " << i << " of " << n);
          x[i] = kept;
        }
      }
    }
  });
}

}  // namespace
}  // namespace lintel
