// SPDX-License-Identifier: Apache-2.0
// Products by a library that may sum in another order for another number of rows (promise 1).
#include "model/ops/product_library.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "model/ops/dense.h"
#include "model/ops/dense_onednn.h"
#include "model/ops/library_product.h"
#include "model/transformer.h"
#include "tests/model/dense/nondeterministic_gemm.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using testing::NondeterministicGemm;
using RowCounts = std::vector<std::size_t>;

Matrix normal_matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(generator);
  return matrix;
}

struct Problem {
  Problem(std::size_t in, std::size_t out)
      : weight(normal_matrix(out, in, 1)), bias(normal_matrix(1, out, 2)) {}
  Dense dense(WeightType type, const ProductLibrary* library,
              Dense::Fused fused = Dense::Fused::kNone) const {
    return Dense(
        weight.values(), bias.values(), weight.cols(), weight.rows(),
        {.weight_type = type, .fused = fused, .kernels = KernelChoice::kAuto, .library = library});
  }
  Dense by_onednn(WeightType type) const {
    return Dense(weight.values(), bias.values(), weight.cols(), weight.rows(),
                 {.weight_type = type, .kernels = KernelChoice::kOneDnn});
  }
  PackedWeights packed(WeightType type) const {
    return {type, weight.values(), bias.values(), weight.cols(), weight.rows()};
  }
  Matrix weight;  // [out, in]
  Matrix bias;    // [1, out]
};

Matrix apply(const Dense& dense, MatrixView<const float> x,
             Dense::Output output = Dense::Output::kStore) {
  DenseInput input(dense.weight_type(), x.rows(), x.cols());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    std::ranges::copy(x.row(r), input.values().row(r).begin());
  }
  input.prepare(0, x.rows());
  Matrix y(x.rows(), dense.out_features());
  dense.apply(input, y.view(), output);
  return y;
}

// True if every row has in batches of up to `most` rows the bits it has alone, at the front and at
// the end of x.
bool rows_keep_their_bits(const Dense& dense, std::size_t most) {
  const Matrix x = normal_matrix(most, dense.in_features(), 3);
  Matrix alone(most, dense.out_features());
  for (std::size_t r = 0; r < most; ++r) {
    std::ranges::copy(apply(dense, x.view().rows_from(r, 1)).row(0), alone.row(r).begin());
  }
  for (std::size_t rows = 1; rows <= most; ++rows) {
    for (const std::size_t first : {std::size_t{0}, most - rows}) {
      const Matrix y = apply(dense, x.view().rows_from(first, rows));
      if (std::memcmp(y.values().data(), alone.row(first).data(), y.values().size_bytes()) != 0) {
        UNSCOPED_INFO("with " << rows << " rows from " << first << " on");
        return false;
      }
    }
  }
  return true;
}

// Sets the process's kernels while it lives.
class Chosen {
 public:
  explicit Chosen(KernelChoice choice) { choose_kernels(choice); }
  ~Chosen() { choose_kernels(before_); }

 private:
  const KernelChoice before_ = chosen_kernels();
};

struct Behaviour {
  const char* what;
  NondeterministicGemm::OrderOf order_of;
  RowCounts proven;
};

std::vector<Behaviour> behaviours() {
  return {
      {"always the same", [](auto, auto) { return 0; }, {2, 8, 16, 32, 48, 64}},
      {"one row differs from two",
       [](auto rows, auto) { return rows == 1; },
       {2, 8, 16, 32, 48, 64}},
      {"other blocks from 48 rows on", [](auto rows, auto) { return rows >= 48; }, {2, 8, 16, 32}},
      {"other blocks from 65 rows on",
       [](auto rows, auto) { return rows >= 65; },
       {2, 8, 16, 32, 48, 64}},
      {"other blocks below 16 rows", [](auto rows, auto) { return rows < 16; }, {16, 32, 48, 64}},
      {"one row, few rows and many rows differ",
       [](auto rows, auto) {
         return rows == 1 ? 0 : rows <= 7 ? 1 : rows < 40 ? 2 : 3;
       },
       {8, 16, 32}},
      {"the 33rd row and those after it differ",
       [](auto, auto row) { return row >= 32; },
       {2, 8, 16, 32}},
      {"the last row of an odd number differs",
       [](auto rows, auto row) { return rows % 2 == 1 && row + 1 == rows; },
       {2, 8, 16, 32, 48, 64}},
      {"every number of rows differs", [](auto rows, auto) { return static_cast<int>(rows); }, {2}},
      {"the first row differs from the second", [](auto, auto row) { return row == 0; }, {}},
  };
}

TEST_CASE("a library runs at numbers of rows that agree with each other", "[library]") {
  for (const Behaviour& behaviour : behaviours()) {
    INFO(behaviour.what);
    NondeterministicGemm library(behaviour.order_of);
    const ProductShape shape{WeightType::kBf16, 33, 40};
    const auto matrix = library.new_matrix(shape);
    CHECK(library.proven_rows(shape, *matrix) == behaviour.proven);
    library.forget();
    CHECK(library.proven_rows(shape, *matrix) == behaviour.proven);
    CHECK(library.products().empty());  // once for a shape
  }
}

TEST_CASE("a layer keeps the bits of a row with a library whose bits depend on the number of rows",
          "[library]") {
  for (const Behaviour& behaviour : behaviours()) {
    INFO(behaviour.what);
    NondeterministicGemm library(behaviour.order_of);
    const Problem problem(50, 21);
    const Dense dense = problem.dense(WeightType::kBf16, &library);
    library.forget();
    CHECK(rows_keep_their_bits(dense, 140));
    const bool trusted = !behaviour.proven.empty() && behaviour.proven.back() >= 16;
    CHECK(library.products().empty() == !trusted);  // falls back where it must, and only there
    for (const auto& [rows, times] : library.products()) {
      INFO(rows << " rows");
      CHECK(std::ranges::count(behaviour.proven, rows) == 1);
    }
    const std::string blocks = trusted
                                   ? "odd in blocks of " + std::to_string(behaviour.proven[0]) +
                                         " to " + std::to_string(behaviour.proven.back()) + " rows"
                                   : multiply_description(WeightType::kBf16) +
                                         ", not odd: its bits depend on the number of rows";
    CHECK(dense.kernels() == blocks);
  }
}

TEST_CASE("sums of a library become what our own kernels make of sums", "[library]") {
  const NondeterministicGemm library([](auto, auto) { return 0; });
  const WeightType type = GENERATE(WeightType::kBf16, WeightType::kInt8);
  const auto fused = GENERATE(Dense::Fused::kNone, Dense::Fused::kRelu, Dense::Fused::kGelu);
  const Problem problem(51, 70);
  const Dense theirs = problem.dense(type, &library, fused);
  const Dense ours = problem.dense(WeightType::kF32, nullptr, fused);
  const Matrix x = normal_matrix(77, 51, 4);
  const Matrix a = apply(theirs, x.view());
  const Matrix b = apply(ours, x.view());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    largest = std::max(largest, std::abs(double{a.values()[i]} - b.values()[i]));
  }
  CHECK(largest <= (type == WeightType::kInt8 ? 0.5 : 0.2));  // roundings of inputs and weights
}

TEST_CASE("int8 has the bits of our own kernels, below 16 rows and by a library", "[library]") {
  NondeterministicGemm library([](auto rows, auto) { return static_cast<int>(rows); });
  const Problem problem(51, 70);
  const Dense dense = problem.dense(WeightType::kInt8, &library);
  library.forget();
  CHECK(rows_keep_their_bits(dense, 140));
  CHECK_FALSE(library.products().empty());
  CHECK(dense.kernels() ==
        "odd in blocks of 2 to 64 rows, below 16 rows " + multiply_description(WeightType::kInt8));
  // One weight is wrong, so it is not used.
  NondeterministicGemm wrong([](auto, auto) { return 0; });
  wrong.is_wrong_in_int8 = true;
  const Dense fallen_back = problem.dense(WeightType::kInt8, &wrong);
  wrong.forget();
  CHECK(rows_keep_their_bits(fallen_back, 40));
  CHECK(wrong.products().empty());
  CHECK(fallen_back.kernels() ==
        multiply_description(WeightType::kInt8) + ", not odd: its sums are not exact");
}

TEST_CASE("a model says what its matrices run on, and keeps the bits of a prompt", "[library]") {
  const Chosen chosen(KernelChoice::kAuto);
  // Behaves as oneDNN on AMX: of one shape 48 rows have other bits, and one row always.
  const NondeterministicGemm library([](auto rows, auto) {
    return rows == 1 ? 1 : rows >= 48 ? 2 : 0;
  });
  ModelConfig config = testing::tiny_config(testing::TinyModel::kTokens);
  config.d_model = 40;
  testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 1);
  const auto model = Transformer::load(
      directory.path(), {.weight_type = WeightType::kBf16, .product_library = &library});
  CHECK(model->kernels() == "odd in blocks of 2 to 32 rows");
  constexpr std::size_t kLength = 127;
  Workspace workspace = model->new_workspace(kLength + 1);
  const auto token = [](std::size_t i) { return static_cast<std::int32_t>(7 * i % 50); };
  SequenceState alone = model->new_sequence();
  std::vector<std::vector<float>> expected;
  for (std::size_t i = 0; i < kLength; ++i) {
    const BatchRow row{token(i), &alone, /*wants_output=*/true};
    const auto out = model->step({&row, 1}, workspace).row(0);
    expected.emplace_back(out.begin(), out.end());
  }
  // The whole prompt in one step, with another sequence.
  SequenceState sequence = model->new_sequence();
  SequenceState neighbour = model->new_sequence();
  std::vector<BatchRow> rows;
  for (std::size_t i = 0; i < kLength; ++i) rows.push_back({token(i), &sequence, true});
  rows.push_back({1, &neighbour, true});
  const MatrixView<const float> out = model->step(rows, workspace);
  int different = 0;
  for (std::size_t i = 0; i < kLength; ++i) {
    different += std::memcmp(out.row(i).data(), expected[i].data(), 4 * expected[i].size()) != 0;
  }
  CHECK(different == 0);
}

TEST_CASE("a model whose shapes differ says how many products run on what", "[library]") {
  const Chosen chosen(KernelChoice::kAuto);
  // Rows of more than 40 inputs in another order for every row.
  class Moody final : public NondeterministicGemm {
   public:
    using NondeterministicGemm::NondeterministicGemm;
    std::unique_ptr<LibraryMatrix> new_matrix(const ProductShape& shape) const override {
      return shape.in_features() > 40 ? moody_.new_matrix(shape)
                                      : NondeterministicGemm::new_matrix(shape);
    }

   private:
    NondeterministicGemm moody_{[](auto, auto row) { return static_cast<int>(row); }};
  };
  const Moody library([](auto, auto) { return 0; });
  ModelConfig config = testing::tiny_config(testing::TinyModel::kTokens);
  config.d_ff = 48;
  testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 1);
  const auto model = Transformer::load(
      directory.path(), {.weight_type = WeightType::kBf16, .product_library = &library});
  CHECK(model->kernels() == "6 of 8 products odd in blocks of 2 to 64 rows; 2 of 8 products " +
                                multiply_description(WeightType::kBf16) +
                                ", not odd: its bits depend on the number of rows");
  const auto own = Transformer::load(directory.path(), {.weight_type = WeightType::kF32});
  CHECK(own->kernels() == dense_kernels_description(WeightType::kF32));
}

TEST_CASE("the chosen library multiplies, and keeps the only copy of the weights", "[library]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const KernelChoice choice = GENERATE(from_range(kKernelChoices));
  const Chosen chosen(choice);
  const Problem problem(256, 192);
  const Dense dense(problem.weight.values(), problem.bias.values(), 256, 192,
                    {.weight_type = type});
  CAPTURE(to_string(type), to_string(choice), dense.kernels());
  const std::size_t one_copy = PackedWeights::bytes_of(type, 256, 192);
  const std::string own = multiply_description(type);
  if (choice != KernelChoice::kOneDnn) {  // its table has our own everywhere
    CHECK(dense.kernels() == own);
    CHECK(dense.weight_bytes() == one_copy);
  } else if (!dense.kernels().starts_with(own + ", not onednn (")) {
    CHECK(dense.kernels().starts_with("onednn ("));
    CHECK(dense.weight_bytes() < one_copy + one_copy / 4);
  }
  CHECK(dense.weight_bytes() <= Dense::most_weight_bytes(256, 192, type));
  CHECK(dense_kernels_description(type) == dense.kernels());
  CHECK(rows_keep_their_bits(dense, 20));
}

TEST_CASE("a library that multiplies all rows has the only copy, one of many rows its own",
          "[library]") {
  const NondeterministicGemm library([](auto, auto) { return 0; });
  const Problem problem(64, 64);
  const Dense all = problem.dense(WeightType::kBf16, &library);
  CHECK(all.weight_bytes() == 64 * 32 * 4 + 64 * 4);  // its cells, our bias
  const Dense many = problem.dense(WeightType::kInt8, &library);
  CHECK(many.weight_bytes() == 64 * 16 * 4 + PackedWeights::bytes_of(WeightType::kInt8, 64, 64));
}

TEST_CASE("an int8 model has the same bits with every choice of kernels", "[library]") {
  ModelConfig config = testing::tiny_config(testing::TinyModel::kTokens);
  config.d_model = 40;
  testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 1);
  const auto outputs = [&](KernelChoice choice, WeightType type) {
    const Chosen chosen(choice);
    const auto model = Transformer::load(directory.path(), {.weight_type = type});
    Workspace workspace = model->new_workspace(30);
    SequenceState sequence = model->new_sequence();
    std::vector<BatchRow> rows;
    for (std::int32_t i = 0; i < 30; ++i) rows.push_back({i, &sequence, true});
    const MatrixView<const float> out = model->step(rows, workspace);
    std::vector<float> values;
    for (std::size_t r = 0; r < out.rows(); ++r) {
      values.insert(values.end(), out.row(r).begin(), out.row(r).end());
    }
    return values;
  };
  CHECK(outputs(KernelChoice::kOneDnn, WeightType::kInt8) ==
        outputs(KernelChoice::kOwn, WeightType::kInt8));
}

TEST_CASE("every choice of kernels has a name") {
  for (const KernelChoice choice : kKernelChoices) {
    CHECK(kernels_named(to_string(choice)) == choice);
  }
  CHECK_FALSE(kernels_named("mkl").has_value());
  CHECK_FALSE(kernels_named("").has_value());
}

bool onednn_has_avx512() { return onednn_instruction_set() >= InstructionSet::kAvx512; }

// Without vpdpbusd oneDNN adds pairs of products in 16 bits.
bool saturates(WeightType type) {
  return type == WeightType::kInt8 && onednn_library().name() == "onednn (avx512_core)";
}

TEST_CASE("oneDNN's products have the bits of ours in int8, and are near in bf16", "[library]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  if (type != WeightType::kF32 && !onednn_has_avx512())
    return;  // oneDNN 2.6 has no such products below
  for (const auto& [in, out] : std::vector<std::pair<int, int>>{{256, 192}, {51, 70}}) {
    const Problem problem(in, out);
    const PackedWeights weights = problem.packed(type);
    std::string why_not;
    const auto onednn = LibraryProduct::make(onednn_library(), weights, why_not);
    CAPTURE(to_string(type), in, out, why_not);
    if (saturates(type)) {
      CHECK(onednn == nullptr);
      CHECK(why_not == "its sums are not exact");
      continue;
    }
    REQUIRE(onednn != nullptr);
    CHECK(onednn->bytes() > 0);
    constexpr std::size_t kRows = 300;  // beyond what one of its primitives takes
    DenseInput input(type, kRows, in);
    const Matrix x = normal_matrix(kRows, in, 3);
    for (std::size_t r = 0; r < x.rows(); ++r) {
      std::ranges::copy(x.row(r), input.values().row(r).begin());
    }
    input.prepare(0, kRows);
    for (const bool add : {false, true}) {
      Matrix own = normal_matrix(kRows, out, 5);
      Matrix theirs = normal_matrix(kRows, out, 5);
      Product product{.weights = &weights,
                      .x = input.cells(),
                      .x_stride = input.stride(),
                      .x_scales = input.scales(),
                      .x_zero = input.zero(),
                      .rows = kRows,
                      .y = own.view().data(),
                      .y_stride = own.cols(),
                      .relu = !add,
                      .add = add};
      multiply(product);
      product.y = theirs.view().data();
      onednn->multiply(product);
      CAPTURE(add);
      double largest = 0.0;
      for (std::size_t i = 0; i < own.values().size(); ++i) {
        largest = std::max(largest, std::abs(double{own.values()[i]} - theirs.values()[i]));
      }
      CHECK(largest <= (type == WeightType::kInt8 ? 0.0 : 2e-4));
    }
  }
}

// On this machine and, where ONEDNN_MAX_CPU_ISA says so, as on another: without bf16 instructions
// one row alone has other bits than among two.
TEST_CASE("a layer of oneDNN keeps the bits of a row in any batch", "[library][slow]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  if (type != WeightType::kF32 && !onednn_has_avx512()) return;
  const ProductLibrary& library = onednn_library();
  double milliseconds = 0.0;
  for (const auto& [in, out] :
       std::vector<std::pair<int, int>>{{256, 768}, {1024, 256}, {640, 320}, {51, 70}}) {
    const Problem problem(in, out);
    const auto begin = std::chrono::steady_clock::now();
    const Dense dense = problem.by_onednn(type);
    milliseconds +=
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    CAPTURE(to_string(type), in, out, dense.kernels());
    const bool in_blocks = dense.kernels().starts_with(library.name() + " in blocks of ");
#if defined(__x86_64__)
    CHECK(in_blocks == !saturates(type));
#else  // oneDNN adds up some shapes in an order of each number of rows, and is found out
    CHECK((in_blocks || dense.kernels().ends_with("its bits depend on the number of rows")));
#endif
    CHECK(rows_keep_their_bits(dense, 130));
  }
  std::cout << "four shapes of " << to_string(type) << " by " << library.name() << " made in "
            << milliseconds << " ms\n";
}

}  // namespace
}  // namespace lintel
