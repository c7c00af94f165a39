// SPDX-License-Identifier: Apache-2.0
// What the kernels of large models make of one core: the share of its read bandwidth for one row,
// of its multiplications of bytes for many, and of reading and writing for states.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/bounds.h"
#include "bench/measure.h"
#include "model/core/tensor.h"
#include "model/ops/block_matrix.h"
#include "model/ops/dense_input.h"
#include "model/ops/dense_kernels.h"
#include "model/ops/mixer_kernels.h"
#include "tests/support/catch.h"

namespace lintel::bench {
namespace {

constexpr int kTries = 7;

BlockMatrix random_matrix(std::size_t in, std::size_t out, int bits) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> some(in + 4'099);  // rows differ
  for (float& value : some) value = uniform(random);
  const auto read = [&](std::size_t first, MatrixView<float> rows) {
    for (std::size_t r = 0; r < rows.rows(); ++r) {
      std::copy_n(some.begin() + static_cast<std::ptrdiff_t>((first + r) % 4'099), in,
                  rows.row(r).begin());
    }
  };
  return bits == 4 ? BlockMatrix::quantized_to_4_bits(in, out, read)
                   : BlockMatrix::quantized_to_8_bits(in, out, read);
}

class Product {
 public:
  Product(std::size_t in, std::size_t out, std::size_t rows, int bits)
      : weights_(random_matrix(in, out, bits)),
        x_(WeightType::kInt8Groups, rows, in),
        y_(rows, out) {
    std::ranges::fill(x_.values().row(0), 0.5f);
    for (std::size_t r = 0; r < rows; ++r) x_.assign(r, x_.values().row(0));
  }
  void run() {
    multiply({.weights = &weights_,
              .x = x_.blocks(),
              .y = y_.view(),
              .end_panel = weights_.num_panels()});
  }
  std::size_t bytes() const { return weights_.bytes(); }

 private:
  const BlockMatrix weights_;
  DenseInput x_;
  Matrix y_;
};

// The best of some pairs of measurements, each of both in turn: others may use the machine.
double best_share(const std::function<double()>& speed, const std::function<double()>& peak) {
  double best = 0;
  for (int i = 0; i < kTries; ++i) best = std::max(best, speed() / peak());
  return best;
}

void check(const std::string& what, double share, double least) {
  std::printf("%-44s %.2f of the peak, at least %.2f\n", what.c_str(), share, least);
  CAPTURE(what);
  CHECK(share >= least);
}

TEST_CASE("kernel shares: one row streams its weights") {
  constexpr std::size_t kIn = 4'096, kOut = 32'768;
  for (const int bits : {8, 4}) {
    Product product(kIn, kOut, 1, bits);
    const auto bytes = static_cast<double>(product.bytes());
    const double share = best_share([&] { return bytes / seconds_of([&] { product.run(); }); },
                                    [&] { return read_bandwidth(1, product.bytes(), 1).most; });
    check("int" + std::to_string(bits) + ", 1 row, of the read bandwidth", share, 0.92);
  }
}

TEST_CASE("kernel shares: many rows multiply") {
  // There is no peak to measure, or no share of it is known.
  if (multiply_rate(1) == 0 || has_avx_vnni()) return;
  constexpr std::size_t kIn = 1'024, kOut = 3'584;
  // Cores that begin two vpdpbusd a cycle load and convert as many bytes as others.
  const bool begins_two = has_vnni() && multiply_rate(1) > 330e9;
  for (const int bits : {8, 4}) {
    for (const std::size_t rows : {16, 64}) {
      Product product(kIn, kOut, rows, bits);
      constexpr int kRuns = 20;
      const double products = static_cast<double>(kIn * kOut * rows) * kRuns;
      const double share = best_share(
          [&] {
            return products / seconds_of([&] {
                     for (int i = 0; i < kRuns; ++i) product.run();
                   });
          },
          [&] { return multiply_rate(1); });
      double least = bits == 8 ? 0.80 : 0.75;
      if (begins_two) least = bits == 8 ? 0.72 : 0.60;
      if (!has_vnni()) least = bits == 8 ? 0.50 : 0.55;
      check(
          "int" + std::to_string(bits) + ", " + std::to_string(rows) + " rows, of multiplications",
          share, least);
    }
  }
}

TEST_CASE("kernel shares: states are read and written") {
  constexpr std::size_t kWidth = 128, kHeads = 1'024;  // 64 MB
  Matrix states(kHeads, kWidth * kWidth);
  const std::vector<float> vector(kWidth, 0.01f);
  std::vector<float> out(kWidth);
  const RecurrenceToken token{.read = vector.data(),
                              .write = vector.data(),
                              .v = vector.data(),
                              .q = vector.data(),
                              .out = out.data(),
                              .decay_of_all = 0.99f};
  const double bytes = static_cast<double>(kHeads * kWidth * kWidth * sizeof(float));
  const double share = best_share(
      [&] {
        return bytes / seconds_of([&] {
                 for (std::size_t h = 0; h < kHeads; ++h) {
                   feed_recurrence(kWidth, kWidth, states.row(h).data(), {&token, 1});
                 }
               });
      },
      [&] { return update_rate(1); });
  check("gated delta rule, of reading and writing", share, 0.80);
}

}  // namespace
}  // namespace lintel::bench
