// SPDX-License-Identifier: Apache-2.0
// Why S and Z are f32: what narrower sums would do to the output (docs/attention.md has the table).
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

#include "model/core/float_formats.h"
#include "model/formats/safetensors.h"
#include "model/layers/attention/common/sum_kernels.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

constexpr std::size_t kHeads = 8;
constexpr std::size_t kWidth = 32;  // of a head
constexpr std::size_t kRow = kHeads * kWidth;

float to_bf16_and_back(float value) { return bf16_to_f32(f32_to_bf16(value)); }

// One layer's S [H, D, D] and Z [H, D], summed in double and rounded after every token.
struct Sums {
  void add(const std::vector<float>& phi_k, const std::vector<float>& v, float (*round)(float)) {
    for (std::size_t i = 0; i < kRow; ++i) {
      z[i] = keep(z[i] + phi_k[i], round);
      const std::size_t head = i / kWidth;
      for (std::size_t m = 0; m < kWidth; ++m) {
        double& sum = s[i * kWidth + m];
        sum = keep(sum + static_cast<double>(phi_k[i]) * v[head * kWidth + m], round);
      }
    }
  }
  std::vector<double> output(const std::vector<float>& phi_q) const {
    std::vector<double> out(kRow, 0.0);
    for (std::size_t h = 0; h < kHeads; ++h) {
      double denominator = 0.0;
      for (std::size_t c = h * kWidth; c < (h + 1) * kWidth; ++c) {
        denominator += phi_q[c] * z[c];
        for (std::size_t m = 0; m < kWidth; ++m) {
          out[h * kWidth + m] += phi_q[c] * s[c * kWidth + m];
        }
      }
      for (std::size_t m = 0; m < kWidth; ++m) out[h * kWidth + m] /= denominator;
    }
    return out;
  }
  static double keep(double sum, float (*round)(float)) {
    return round == nullptr ? sum : static_cast<double>(round(static_cast<float>(sum)));
  }
  std::vector<double> s = std::vector<double>(kRow * kWidth, 0.0);
  std::vector<double> z = std::vector<double>(kRow, 0.0);
};

// Root mean square of the differences, in shares of what is expected.
template <typename Values>
double relative_error(const Values& values, const std::vector<double>& expected) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (values[i] - expected[i]) * (values[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

TEST_CASE("sums in f32 keep their digits over 100,000 tokens, sums in bf16 do not over an image") {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> mean(kRow);
  for (float& value : mean) value = 0.5f * normal(generator);
  std::vector<float> q(kRow), k(kRow), v(kRow), phi_q(kRow), phi_k(kRow), out(kRow);
  const SumShape shape{.n_heads = kHeads, .n_features = kWidth, .d_head = kWidth, .eps = 0.0f};
  std::vector<float> s(kRow * kWidth, 0.0f), z(kRow, 0.0f);
  Sums exact, narrow;
  for (int token = 1; token <= 100'000; ++token) {
    for (std::size_t i = 0; i < kRow; ++i) {
      q[i] = normal(generator);
      k[i] = normal(generator);
      v[i] = mean[i] + normal(generator);
    }
    elu_plus_one(q, phi_q);
    elu_plus_one(k, phi_k);
    linear_attention_step(shape, token - 1, phi_q.data(), phi_k.data(), v.data(), s.data(),
                          z.data(), out.data());
    exact.add(phi_k, v, nullptr);
    if (token <= 10'000) narrow.add(phi_k, v, to_bf16_and_back);
    if (token != 100 && token != 784 && token != 10'000 && token != 100'000) continue;
    const std::vector<double> expected = exact.output(phi_q);
    const double f32 = relative_error(out, expected);
    std::cout << "state after " << token << " tokens: error " << f32 << " in f32";
    CHECK(f32 < 1e-5);
    if (token <= 10'000) {
      const double bf16 = relative_error(narrow.output(phi_q), expected);
      std::cout << ", " << bf16 << " in bf16";
      CHECK(bf16 > 1000 * f32);
      if (token == 784) CHECK(bf16 > 0.05);
    }
    std::cout << std::endl;
  }
}

}  // namespace
}  // namespace lintel
