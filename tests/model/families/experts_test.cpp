// SPDX-License-Identifier: Apache-2.0
// Experts: against plain sums in double precision, and the promise of bits.
#include "model/layers/mixers/experts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "model/core/step_thread_pool.h"
#include "model/ops/mixer_kernels.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

struct MixtureShape {
  std::size_t experts = 8;        // N
  std::size_t chosen = 3;         // k
  std::size_t width = 24;         // E
  std::size_t expert_width = 12;  // FM
  std::size_t shared_width = 16;  // FS
  bool is_normalized = true;
  std::size_t equal_experts = 0;  // of the router's rows, from the first on
};

// Random weights [rows, cols] of a matrix.
struct RandomMatrix {
  std::size_t rows;
  std::size_t cols;
  std::vector<float> values;

  RandomMatrix(std::size_t r, std::size_t c, std::mt19937& random)
      : rows(r), cols(c), values(r * c) {
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(c)));
    for (float& value : values) value = normal(random);
  }
  Dense dense(WeightType type) const {
    return Dense(values, std::vector<float>(rows), cols, rows, {.weight_type = type});
  }
  std::vector<double> times(std::span<const double> x) const {
    std::vector<double> y(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) y[r] += double{values[r * cols + c]} * x[c];
    }
    return y;
  }
};

struct RandomExpert {
  RandomMatrix gate_up;
  RandomMatrix down;

  RandomExpert(std::size_t width, std::size_t ff_width, std::mt19937& random)
      : gate_up(2 * ff_width, width, random), down(width, ff_width, random) {}
  Swiglu mixer(WeightType type) const { return Swiglu(gate_up.dense(type), down.dense(type)); }
  std::vector<double> apply(std::span<const double> h) const {
    const std::vector<double> both = gate_up.times(h);
    std::vector<double> hidden(down.cols);
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      hidden[i] = both[i] / (1.0 + std::exp(-both[i])) * both[hidden.size() + i];
    }
    return down.times(hidden);
  }
};

struct Mixture {
  MixtureShape shape;
  RandomMatrix router;  // [N + 1, E]
  std::vector<RandomExpert> experts;
  RandomExpert shared;

  Mixture(const MixtureShape& of, std::mt19937& random)
      : shape(of),
        router(of.experts + 1, of.width, random),
        shared(of.width, of.shared_width, random) {
    for (std::size_t i = 0; i < of.experts; ++i) {
      experts.emplace_back(of.width, of.expert_width, random);
    }
    for (std::size_t i = 1; i < of.equal_experts; ++i) {
      std::copy_n(router.values.begin(), of.width,
                  router.values.begin() + static_cast<std::ptrdiff_t>(i * of.width));
    }
  }

  Experts mixer(WeightType type = WeightType::kF32) const {
    ExpertsWeights weights;
    weights.router = router.dense(WeightType::kF32);
    for (const RandomExpert& expert : experts) weights.experts.push_back(expert.mixer(type));
    weights.shared = shared.mixer(type);
    return Experts(shape.chosen, shape.is_normalized, std::move(weights));
  }

  // The chosen experts in order of index.
  std::vector<std::size_t> chosen_of(std::span<const double> logits) const {
    std::vector<std::size_t> order(shape.experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
    order.resize(shape.chosen);
    std::ranges::sort(order);
    return order;
  }

  std::vector<double> twin(std::span<const float> row) const {
    const std::vector<double> h(row.begin(), row.end());
    const std::vector<double> logits = router.times(h);
    const std::vector<std::size_t> chosen = chosen_of(logits);
    double of_all = 0.0;
    double of_chosen = 0.0;
    for (std::size_t e = 0; e < shape.experts; ++e) of_all += std::exp(logits[e]);
    for (const std::size_t e : chosen) of_chosen += std::exp(logits[e]);
    std::vector<double> y(shape.width);
    const auto add = [&](double weight, const RandomExpert& expert) {
      const std::vector<double> part = expert.apply(h);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += weight * part[i];
    };
    for (const std::size_t e : chosen) {
      add(std::exp(logits[e]) / (shape.is_normalized ? of_chosen : of_all), experts[e]);
    }
    add(1.0 / (1.0 + std::exp(-logits[shape.experts])), shared);
    return y;
  }
};

Matrix random_rows(std::size_t rows, std::size_t width, std::mt19937& random) {
  Matrix x(rows, width);
  std::normal_distribution<float> normal;
  for (float& value : x.values()) value = normal(random);
  return x;
}

// x + mixer(x) of rows `first` to `first + count` of x in one step.
Matrix after_step(const Mixer& mixer, WeightType type, const Matrix& x, std::size_t first,
                  std::size_t count, MixerScratch& scratch, StepThreadPool* team = nullptr) {
  const MatrixView<const float> rows = x.view().rows_from(first, count);
  DenseInput input(type, count, x.cols());
  DenseInput exact(WeightType::kF32, count, x.cols());
  Matrix y(count, x.cols());
  for (std::size_t r = 0; r < count; ++r) {
    input.assign(r, rows.row(r));
    exact.assign(r, rows.row(r));
    std::ranges::copy(rows.row(r), y.row(r).begin());
  }
  mixer.step({.states = {},
              .positions = {},
              .normed = rows,
              .input = input,
              .exact = exact,
              .carry = {},
              .team = team},
             y.view(), scratch);
  return y;
}

bool are_same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// One, several and all experts; more that have equal logits than are chosen; weights as they are.
const std::vector<MixtureShape> kMixtures = {
    {},
    {.is_normalized = false},
    {.chosen = 1},
    {.chosen = 1, .is_normalized = false},
    {.chosen = 8},
    {.chosen = 8, .is_normalized = false},
    {.experts = 1, .chosen = 1},
    {.chosen = 3, .is_normalized = false, .equal_experts = 5},
    {.chosen = 4, .equal_experts = 8},
    {.experts = 40, .chosen = 10, .width = 96, .expert_width = 96, .shared_width = 64},
};

TEST_CASE("experts: outputs are those of sums in double precision", "[rows]") {
  const std::size_t number = GENERATE(range(std::size_t{0}, std::size_t{10}));
  const unsigned seed = 1000 + static_cast<unsigned>(number);
  CAPTURE(number, seed);
  std::mt19937 random(seed);
  const Mixture mixture(kMixtures.at(number), random);
  const Experts mixer = mixture.mixer();
  const Matrix x = random_rows(17, mixture.shape.width, random);
  MixerScratch scratch;
  const Matrix y = after_step(mixer, WeightType::kF32, x, 0, x.rows(), scratch);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const std::vector<double> expected = mixture.twin(x.row(r));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(r, i);
      CHECK(std::abs(y.row(r)[i] - x.row(r)[i] - expected[i]) <= 2e-6);
    }
  }
}

TEST_CASE("experts: other rows of a step and threads leave the bits of a row", "[rows]") {
  const std::size_t number = GENERATE(range(std::size_t{0}, std::size_t{10}));
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const unsigned seed = 2000 + static_cast<unsigned>(number);
  CAPTURE(number, to_string(type), seed);
  std::mt19937 random(seed);
  const Mixture mixture(kMixtures.at(number), random);
  const Experts mixer = mixture.mixer(type);
  const Matrix x = random_rows(67, mixture.shape.width, random);
  MixerScratch scratch;
  const Matrix all = after_step(mixer, type, x, 0, x.rows(), scratch);
  for (const std::size_t count : {1, 2, 5, 33}) {
    CAPTURE(count);
    for (std::size_t first = 0; first + count <= x.rows(); first += count) {
      const Matrix some = after_step(mixer, type, x, first, count, scratch);
      CHECK(are_same_bits(some.values(), all.values().subspan(first * x.cols(), count * x.cols())));
    }
  }
  StepThreadPool team;
  const StepHelpers helpers(team, 2);
  team.use(3);
  CHECK(are_same_bits(after_step(mixer, type, x, 0, x.rows(), scratch, &team).values(),
                      all.values()));
}

TEST_CASE("experts: the sum of a row is in order of index, the shared expert last", "[rows]") {
  const unsigned seed = 3000;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Mixture mixture({.experts = 12, .chosen = 5}, random);
  const std::size_t width = mixture.shape.width;
  const Matrix x = random_rows(9, width, random);
  const Dense router = mixture.router.dense(WeightType::kF32);
  MixerScratch scratch;
  for (std::size_t r = 0; r < x.rows(); ++r) {
    DenseInput input(WeightType::kF32, 1, width);
    input.assign(0, x.row(r));
    Matrix logits(1, mixture.shape.experts + 1);
    router.apply(input, logits.view());
    const std::span<const float> of_experts = logits.values().first(mixture.shape.experts);
    const std::vector<double> order(of_experts.begin(), of_experts.end());
    const float largest = *std::ranges::max_element(of_experts);
    float of_all = 0.0f;
    for (const float logit : of_experts) of_all += std::exp(logit - largest);
    std::vector<float> weights(of_experts.size());
    float of_chosen = 0.0f;
    const std::vector<std::size_t> chosen = mixture.chosen_of(order);
    for (const std::size_t e : chosen) {
      weights[e] = std::exp(of_experts[e] - largest) / of_all;
      of_chosen += weights[e];
    }
    Matrix part(1, width);
    std::vector<float> sum(width);
    const auto add = [&](float weight, const RandomExpert& expert) {
      const Swiglu alone = expert.mixer(WeightType::kF32);
      alone.apply(input, part.view(), nullptr, scratch);
      for (std::size_t i = 0; i < width; ++i) sum[i] += weight * part.row(0)[i];
    };
    for (const std::size_t e : chosen) add(weights[e] / of_chosen, mixture.experts[e]);
    add(sigmoid(logits.row(0).back()), mixture.shared);
    for (std::size_t i = 0; i < width; ++i) sum[i] += x.row(r)[i];
    const Experts mixer = mixture.mixer();
    CHECK(are_same_bits(after_step(mixer, WeightType::kF32, x, r, 1, scratch).values(), sum));
  }
}

TEST_CASE("experts: an expert without rows is not read") {
  std::mt19937 random(4000);
  // The first three have equal logits, the others have none.
  Mixture mixture({.equal_experts = 8}, random);
  for (std::size_t e = 3; e < mixture.shape.experts; ++e) {
    std::ranges::fill(mixture.experts[e].gate_up.values, std::numeric_limits<float>::quiet_NaN());
  }
  const Experts mixer = mixture.mixer();
  MixerScratch scratch;
  const Matrix x = random_rows(6, mixture.shape.width, random);
  const Matrix y = after_step(mixer, WeightType::kF32, x, 0, x.rows(), scratch);
  CHECK(std::ranges::all_of(y.values(), [](float value) { return std::isfinite(value); }));
}

TEST_CASE("experts: a step allocates nothing after one with as many rows") {
  std::mt19937 random(5000);
  const Mixture mixture({}, random);
  const Experts mixer = mixture.mixer();
  const Matrix x = random_rows(32, mixture.shape.width, random);
  MixerScratch scratch;
  DenseInput input(WeightType::kF32, x.rows(), x.cols());
  Matrix y(x.rows(), x.cols());
  // Other rows choose other experts: how many rows each has changes from step to step.
  const auto step = [&](std::size_t first, std::size_t count) {
    for (std::size_t r = 0; r < count; ++r) input.assign(r, x.row(first + r));
    mixer.step({.states = {},
                .positions = {},
                .normed = x.view().rows_from(first, count),
                .input = input,
                .exact = input,
                .carry = {}},
               y.view().rows_from(0, count), scratch);
  };
  step(0, 16);
  const testing::AllocationCount count;
  for (std::size_t first = 0; first <= 16; ++first) step(first, 16);
  for (std::size_t rows = 1; rows < 16; ++rows) step(rows, rows);
  CHECK(count.so_far() == 0);
}

}  // namespace
}  // namespace lintel
