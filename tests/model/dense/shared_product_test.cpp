// SPDX-License-Identifier: Apache-2.0
// Products that several threads share: the bits of one thread's.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "model/core/step_thread_pool.h"
#include "model/ops/dense.h"
#include "model/ops/packed_weights.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

constexpr std::size_t kMostRows = 70;
constexpr int kTries = 20;  // each is split in another way, as chance has it

struct Shape {
  std::size_t in, out;
};

class Layer {
 public:
  Layer(Shape shape, WeightType type, Dense::Fused fused)
      : dense_(made(shape, type, fused)),
        x_(dense_.weight_type(), kMostRows, shape.in),
        begun_(drawn(kMostRows * shape.out)) {
    for (std::size_t r = 0; r < kMostRows; ++r) {
      std::ranges::copy(drawn(shape.in), x_.values().row(r).begin());
    }
    x_.prepare(0, kMostRows);
  }

  std::size_t out_features() const { return dense_.out_features(); }
  std::vector<float> apply(std::size_t rows, Dense::Output output, StepThreadPool* team) const {
    std::vector<float> y = begun_;
    dense_.apply(x_, {y.data(), rows, dense_.out_features(), dense_.out_features()}, output,
                 nullptr, team);
    return y;
  }
  Dense::Multiplication multiplication(std::size_t rows, std::vector<float>& y) const {
    y.assign(rows * dense_.out_features(), 0.0f);
    return {&dense_, &x_, {y.data(), rows, dense_.out_features(), dense_.out_features()}};
  }
  // Prepares the output as the products after a ReLU read it.
  std::vector<std::uint32_t> apply_into(std::size_t rows, StepThreadPool* team) const {
    DenseInput y(dense_.weight_type(), kMostRows, dense_.out_features(),
                 DenseInput::Range::kNonNegative);
    if (!dense_.apply_into(x_, rows, y, team)) y.prepare(0, rows);
    std::vector<std::uint32_t> cells;
    const std::size_t count = num_cells(dense_.weight_type(), dense_.out_features());
    for (std::size_t r = 0; r < rows; ++r) {
      const std::uint32_t* const row = y.cells() + r * y.stride();
      cells.insert(cells.end(), row, row + count);
    }
    return cells;
  }

 private:
  std::vector<float> drawn(std::size_t count) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> values(count);
    for (float& value : values) value = normal(generator_);
    return values;
  }

  Dense made(Shape shape, WeightType type, Dense::Fused fused) {
    const std::vector<float> weight = drawn(shape.in * shape.out), bias = drawn(shape.out);
    const Dense::Options options = {.weight_type = type, .fused = fused};
    if (type == WeightType::kF32) return {weight, bias, shape.in, shape.out, options};
    const auto read = [&](std::size_t first, MatrixView<float> rows) {
      for (std::size_t r = 0; r < rows.rows(); ++r) {
        std::ranges::copy(std::span(weight).subspan((first + r) * shape.in, shape.in),
                          rows.row(r).begin());
      }
    };
    return {read, bias, shape.in, shape.out, options};
  }

  std::mt19937 generator_{7};
  Dense dense_;
  DenseInput x_;
  std::vector<float> begun_;  // the values to add to
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("a product that threads share has the bits of one thread's", "[rows]") {
  StepThreadPool team;
  const StepHelpers helpers(team, 3);
  const WeightType type = GENERATE(from_range(kWeightTypes));
  for (const Shape shape : {Shape{256, 768}, Shape{1024, 256}, Shape{150, 70}, Shape{33, 64}}) {
    const Layer plain(shape, type, Dense::Fused::kNone);
    const Layer relu(shape, type, Dense::Fused::kRelu);
    for (const std::size_t rows : {1u, 5u, 16u, 33u, 70u}) {
      CAPTURE(shape.in, shape.out, rows, to_string(type));
      const auto stored = plain.apply(rows, Dense::Output::kStore, nullptr);
      const auto added = plain.apply(rows, Dense::Output::kAdd, nullptr);
      const auto rectified = relu.apply_into(rows, nullptr);
      for (int i = 0; i < kTries; ++i) {
        REQUIRE(same_bits(plain.apply(rows, Dense::Output::kStore, &team), stored));
        REQUIRE(same_bits(plain.apply(rows, Dense::Output::kAdd, &team), added));
        REQUIRE(relu.apply_into(rows, &team) == rectified);
      }
    }
  }
}

TEST_CASE("products that threads share together have the bits of each alone", "[rows]") {
  StepThreadPool team;
  const StepHelpers helpers(team, 3);
  std::vector<Layer> layers;
  for (const WeightType type : {WeightType::kInt4, WeightType::kBf16, WeightType::kF32,
                                WeightType::kInt8Groups, WeightType::kInt8}) {
    for (const Shape shape : {Shape{256, 300}, Shape{512, 16}, Shape{96, 33}}) {
      layers.emplace_back(shape, type, Dense::Fused::kNone);
    }
  }
  for (const std::size_t rows : {1u, 5u, 33u}) {
    std::vector<std::vector<float>> expected;
    for (const Layer& layer : layers) {
      std::vector<float>& y = expected.emplace_back();
      y = layer.apply(rows, Dense::Output::kStore, nullptr);
      y.resize(rows * layer.out_features());
    }
    for (int i = 0; i < kTries; ++i) {
      std::vector<std::vector<float>> together(layers.size());
      std::vector<Dense::Multiplication> products;
      for (std::size_t n = 0; n < layers.size(); ++n) {
        products.push_back(layers[n].multiplication(rows, together[n]));
      }
      Dense::apply_all(products, nullptr, &team);
      for (std::size_t n = 0; n < layers.size(); ++n) {
        CAPTURE(rows, n);
        REQUIRE(same_bits(together[n], expected[n]));
      }
    }
  }
}

}  // namespace
}  // namespace lintel
