// SPDX-License-Identifier: Apache-2.0
// Sums relative to a running maximum (relative_attention_step) over very long sequences: rounded by
// draws from kFirstDrawnPosition on, as the sums of long_sums_test.cpp are.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

#include "model/layers/attention/common/sum_kernels.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

std::vector<float> normal(std::size_t count, float deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

TEST_CASE("a relative sum is rounded up as often as makes it right in the mean", "[rows]") {
  constexpr float kSum = 0x1.8p24f;  // the next number is 2 more
  constexpr int kTimes = 100'000;
  const SumShape shape{.n_heads = 1, .n_features = 2, .d_head = 3, .eps = 0.0f};
  for (const float log_k : {0.0f, -1.5f, -4.0f}) {
    double z_sum = 0.0, s_sum = 0.0, mirrored_sum = 0.0;
    for (int i = 0; i < kTimes; ++i) {
      std::vector<float> s(6, kSum), z(2, kSum), m(2, 0.0f), q(2, 0.0f), k(2, log_k), out(3);
      const std::vector<float> v(3, 1.0f);
      relative_attention_step(shape, SumReading::kByRow, kFirstDrawnPosition + i, q.data(),
                              k.data(), v.data(), s.data(), z.data(), m.data(), out.data());
      z_sum += z[0] - kSum;
      s_sum += s[0] - kSum;
      mirrored_sum += s[3] - kSum;
    }
    // One standard deviation is at most 1 / sqrt(kTimes), 0.003.
    CAPTURE(log_k);
    CHECK(z_sum / kTimes == Approx(std::exp(log_k)).margin(0.015));
    CHECK(s_sum / kTimes == Approx(std::exp(log_k)).margin(0.015));
    CHECK(mirrored_sum / kTimes == Approx(std::exp(log_k)).margin(0.015));
  }
}

TEST_CASE("a key that is greater than all before scales the sums of its feature alone", "[rows]") {
  testing::for_each_instruction_set([] {
    for (const std::int64_t position : {std::int64_t{0}, 3 * kFirstDrawnPosition}) {
      for (std::size_t n = 1; n <= 40; ++n) {
        const SumShape shape{.n_heads = 2, .n_features = n, .d_head = 5, .eps = 0.0f};
        std::vector<float> s = normal(2 * n * 5, 1e3f, 1), z(2 * n, 1000.0f),
                           m = normal(2 * n, 9.0f, 2);
        const std::vector<float> before = s, m_before = m, v = normal(10, 1.0f, 3);
        std::vector<float> k(2 * n), q(2 * n), out(10);
        const std::size_t risen = n + n / 2;  // of the second head
        for (std::size_t c = 0; c < 2 * n; ++c) k[c] = m[c] + (c == risen ? 2.0f : -3.0f);
        relative_attention_step(shape, SumReading::kByRow, position, q.data(), k.data(), v.data(),
                                s.data(), z.data(), m.data(), out.data());
        CAPTURE(position, n);
        for (std::size_t c = 0; c < 2 * n; ++c) {
          const double factor = c == risen ? std::exp(-2.0) : 1.0;
          const double weight = c == risen ? 1.0 : std::exp(-3.0);
          CHECK(m[c] == (c == risen ? m_before[c] + 2.0f : m_before[c]));
          CHECK(z[c] == Approx(1000.0 * factor + weight).epsilon(1e-6));
          for (std::size_t i = 0; i < 5; ++i) {
            const double expected = before[c * 5 + i] * factor + weight * v[c / n * 5 + i];
            CHECK(s[c * 5 + i] == Approx(expected).epsilon(1e-6).margin(1e-3));
          }
        }
      }
    }
  });
}

// ---- Against sums in double.

constexpr std::size_t kFeatures = 12;
constexpr std::size_t kHead = 16;
constexpr int kRelativePeriod = 61;

// Keys and values that come round again: the exact sums are a multiple of one period's.
struct Round {
  Round()
      : log_k(normal(kRelativePeriod * kFeatures, 3.0f, 1)),
        v(normal(kRelativePeriod * kHead, 1.0f, 2)) {
    const std::vector<float> mean = normal(kHead, 0.5f, 3);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] += mean[i % kHead];
  }
  const float* key(std::int64_t t) const { return &log_k[at(t) * kFeatures]; }
  const float* value(std::int64_t t) const { return &v[at(t) * kHead]; }
  static std::size_t at(std::int64_t t) { return static_cast<std::size_t>(t % kRelativePeriod); }
  // The occurrences of token t of the first period among the first `tokens`.
  static double times(std::int64_t tokens, std::int64_t t) {
    return static_cast<double>((tokens - t + kRelativePeriod - 1) / kRelativePeriod);
  }

  struct Sums {
    std::vector<double> m = std::vector<double>(kFeatures, -1e30);
    std::vector<double> z = std::vector<double>(kFeatures);
    std::vector<double> s = std::vector<double>(kFeatures * kHead);
  };
  Sums after(std::int64_t tokens) const {
    Sums sums;
    const std::int64_t last = std::min<std::int64_t>(tokens, kRelativePeriod);
    for (std::size_t c = 0; c < kFeatures; ++c) {
      for (std::int64_t t = 0; t < last; ++t) sums.m[c] = std::max<double>(sums.m[c], key(t)[c]);
      for (std::int64_t t = 0; t < last; ++t) {
        const double weight = times(tokens, t) * std::exp(key(t)[c] - sums.m[c]);
        sums.z[c] += weight;
        for (std::size_t i = 0; i < kHead; ++i) sums.s[c * kHead + i] += weight * value(t)[i];
      }
    }
    return sums;
  }

  // The output for the query log_q.
  std::vector<double> output(std::int64_t tokens, SumReading reading, const float* log_q) const {
    const Sums sums = after(tokens);
    std::vector<double> out(kHead);
    double denominator = 0.0;
    for (std::size_t c = 0; c < kFeatures; ++c) {
      const bool by_row = reading == SumReading::kByRow;
      const double weight = std::exp(log_q[c] + (by_row ? sums.m[c] : 0.0));
      denominator += by_row ? weight * sums.z[c] : weight;
      const double share = by_row ? weight : weight / sums.z[c];
      for (std::size_t i = 0; i < kHead; ++i) out[i] += share * sums.s[c * kHead + i];
    }
    for (double& x : out) x /= denominator;
    return out;
  }

  std::vector<float> log_k, v;  // [kRelativePeriod, kFeatures], [kRelativePeriod, kHead]
};

// Feeds the tokens from `begin` to `end` (exclusive) to sums that are exact up to there, and
// returns the error of the last output, in shares of its own (root mean squares). Positions are as
// they are, or those of rounding to nearest.
double error_after(SumReading reading, std::int64_t begin, std::int64_t end, bool nearest) {
  const Round round;
  const SumShape shape{.n_heads = 1, .n_features = kFeatures, .d_head = kHead, .eps = 0.0f};
  std::vector<float> s(kFeatures * kHead), z(kFeatures), m(kFeatures), out(kHead);
  if (begin > 0) {
    const Round::Sums sums = round.after(begin);
    std::ranges::copy(sums.s, s.begin());
    std::ranges::copy(sums.z, z.begin());
    std::ranges::copy(sums.m, m.begin());
  }
  std::vector<float> q(kFeatures), k(kFeatures);
  for (std::int64_t t = begin; t < end; ++t) {
    std::copy_n(round.key(t + 7), kFeatures, q.begin());
    std::copy_n(round.key(t), kFeatures, k.begin());
    relative_attention_step(shape, reading, nearest ? 0 : t, q.data(), k.data(), round.value(t),
                            s.data(), z.data(), m.data(), out.data());
  }
  const std::vector<double> expected = round.output(end, reading, round.key(end + 6));
  double error = 0.0, size = 0.0;
  for (std::size_t i = 0; i < kHead; ++i) {
    error += (out[i] - expected[i]) * (out[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  std::cout << "relative sums " << (nearest ? "rounded to nearest, " : "") << "from " << begin
            << " to " << end << " tokens: error " << std::sqrt(error / size) << std::endl;
  return std::sqrt(error / size);
}

TEST_CASE("relative sums in f32 stay right over five million tokens and near a thousand million",
          "[slow]") {
  const SumReading reading = GENERATE(SumReading::kByRow, SumReading::kByChannel);
  CHECK(error_after(reading, 0, 100'000, false) < 2e-4);
  CHECK(error_after(reading, 900'000'000, 901'000'000, false) < 1e-4);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(error_after(reading, 0, 5'000'000, false) < 2e-4);
  // The error of rounding to nearest, where nothing is drawn.
  CHECK(error_after(reading, 0, 5'000'000, true) > 1e-3);
#endif
}

}  // namespace
}  // namespace lintel
