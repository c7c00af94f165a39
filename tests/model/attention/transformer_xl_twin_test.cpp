// SPDX-License-Identifier: Apache-2.0
// Transformer-XL against a twin that does what the formulas say, in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "model/fastest_type.h"
#include "tests/model/attention/twin.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using testing::attend;
using testing::dot;
using testing::full_pass;
using testing::head_of;
using testing::kTwinTolerance;
using testing::largest_difference;
using testing::Row;
using testing::Rows;
using testing::steps;
using testing::TwinInputs;

struct Xl {
  std::size_t segment;  // L
  std::size_t memory;   // M
  std::optional<std::size_t> clamp = std::nullopt;
  double scale = 0.0;  // 0: null
  int n_heads = 2;
  int d_head = 8;
  int d_model = 16;
  std::int64_t max_length = 0;

  std::string spec() const {
    return "transformer_xl:segment_length=" + std::to_string(segment) +
           ",memory_length=" + std::to_string(memory) +
           (clamp ? ",clamp_length=" + std::to_string(*clamp) : "") +
           (scale > 0.0 ? ",scale=" + std::to_string(scale) : "");
  }
};

TwinInputs xl_inputs(const Xl& xl, std::size_t n, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  TwinInputs in{attention_of(xl.spec()),
                {.d_model = xl.d_model,
                 .n_heads = xl.n_heads,
                 .d_head = xl.d_head,
                 .max_length = xl.max_length}};
  for (const OwnTensor& tensor : own_tensors(in.config, in.dims)) {
    in.own.push_back(TensorSpec{tensor.name, tensor.shape}.new_matrix());
    const float factor = tensor.name == "r_net.weight" ? 1.0f / std::sqrt(xl.d_model) : 1.0f;
    for (float& x : in.own.back().values()) x = factor * normal(generator);
  }
  for (int i = 0; i < 3; ++i) {
    Matrix& input = in.inputs.emplace_back(n, static_cast<std::size_t>(in.dims.width()));
    for (float& x : input.values()) x = normal(generator);
  }
  return in;
}

// r_net R_d of one head.
Row distance_row(const TwinInputs& in, std::size_t distance, int head) {
  const int width = in.dims.d_model;
  Row sinusoid;
  for (int i = 0; i < width / 2; ++i) {
    sinusoid.push_back(std::sin(distance * std::pow(10000.0, -2.0 * i / width)));
  }
  for (int i = 0; i < width / 2; ++i) {
    sinusoid.push_back(std::cos(distance * std::pow(10000.0, -2.0 * i / width)));
  }
  Row r;
  for (int c = 0; c < in.dims.d_head; ++c) {
    r.push_back(dot(in.own[0].row(static_cast<std::size_t>(head * in.dims.d_head + c)), sinusoid));
  }
  return r;
}

Rows xl_twin(const TwinInputs& in) {
  const std::size_t segment = in.config.integer("segment_length");
  const std::size_t memory = in.config.integer("memory_length");
  const std::size_t clamp = in.config.integer("clamp_length", /*if_null=*/SIZE_MAX);
  const int d_head = in.dims.d_head;
  const std::size_t n = in.num_tokens();
  Rows outputs(n);
  for (int h = 0; h < in.dims.n_heads; ++h) {
    Rows r;
    for (std::size_t d = 0; d < n; ++d) r.push_back(distance_row(in, std::min(d, clamp), h));
    for (std::size_t t = 0; t < n; ++t) {
      std::vector<double> scores;
      std::vector<std::size_t> positions;
      const std::size_t begin = t / segment * segment;
      for (std::size_t s = begin > memory ? begin - memory : 0; s <= t; ++s) {
        double score = 0.0;
        for (int c = 0; c < d_head; ++c) {
          const double q = head_of(in.inputs[0], t, h, d_head)[c];
          score += (q + in.own[1].row(h)[c]) * head_of(in.inputs[1], s, h, d_head)[c];
          score += (q + in.own[2].row(h)[c]) * r[t - s][c];
        }
        scores.push_back(in.scale() * score);
        positions.push_back(s);
      }
      Row out;
      attend(scores, positions, in.inputs[2], h, d_head, out);
      outputs[t].insert(outputs[t].end(), out.begin(), out.end());
    }
  }
  return outputs;
}

void check_twin(const Xl& xl, std::size_t n, std::mt19937& generator) {
  CAPTURE(xl.spec(), xl.n_heads, xl.d_head, xl.d_model, xl.max_length, n);
  const TwinInputs in = xl_inputs(xl, n, generator);
  const Rows expected = xl_twin(in);
  testing::for_each_instruction_set([&] {
    CHECK(largest_difference(steps(in, generator), expected) < kTwinTolerance);
    CHECK(largest_difference(full_pass(in), expected) < kTwinTolerance);
  });
}

TEST_CASE("transformer_xl follows its formulas, with random settings", "[rows]") {
  std::mt19937 generator(1);
  CAPTURE("seed 1");
  const auto below = [&](std::size_t most) { return generator() % most; };
  for (int i = 0; i < 40; ++i) {
    Xl xl{.segment = 1 + below(i % 2 == 0 ? 6 : 90), .memory = below(i % 3 == 0 ? 10 : 150)};
    if (below(2) == 0) xl.clamp = 1 + below(xl.segment + xl.memory + 20);
    if (below(2) == 0) xl.scale = 0.3;
    xl.n_heads = static_cast<int>(1 + below(3));
    xl.d_head = std::vector{1, 5, 8, 16, 33, 80}[below(6)];
    xl.d_model = 2 * static_cast<int>(1 + below(40));
    const std::size_t n = 1 + below(250);
    if (below(2) == 0) xl.max_length = static_cast<std::int64_t>(n + below(3));
    check_twin(xl, n, generator);
  }
}

TEST_CASE("transformer_xl of one position, without memory, and with all distances clamped") {
  std::mt19937 generator(2);
  check_twin({.segment = 1, .memory = 0}, 20, generator);
  check_twin({.segment = 1, .memory = 0, .clamp = 1}, 20, generator);
  check_twin({.segment = 9, .memory = 0}, 100, generator);
  check_twin({.segment = 1, .memory = 40}, 200, generator);
  check_twin({.segment = 16, .memory = 24}, 160, generator);
  check_twin({.segment = 300, .memory = 5}, 250, generator);
  for (const std::size_t clamp : {1, 38, 39, 40, 41, 64, 1000}) {  // the furthest seen is 39
    check_twin({.segment = 16, .memory = 24, .clamp = clamp}, 160, generator);
  }
  for (const std::size_t memory : {62, 63, 64, 126, 127, 128}) {  // rings of whole tiles, and not
    check_twin({.segment = 2, .memory = memory}, 300, generator);
    check_twin({.segment = 2, .memory = memory, .clamp = 63}, 300, generator);
  }
}

TEST_CASE("a position that sees itself alone gives its own value in transformer_xl") {
  std::mt19937 generator(3);
  const TwinInputs in = xl_inputs({.segment = 1, .memory = 0}, 10, generator);
  const Matrix out = steps(in, generator);
  CHECK(std::ranges::equal(out.values(), in.inputs[2].values()));
}

TEST_CASE("the bits of transformer_xl depend on what is seen, not on where the ring begins") {
  std::mt19937 generator(4);
  const auto same_row = [](const Matrix& a, const Matrix& b, std::size_t t) {
    return std::memcmp(a.row(t).data(), b.row(t).data(), a.cols() * sizeof(float)) == 0;
  };
  testing::for_each_instruction_set([&] {
    TwinInputs in = xl_inputs({.segment = 2, .memory = 98}, 400, generator);
    const Matrix two = steps(in, generator);
    // At even positions a segment of one sees the same, from a ring of one position less.
    in.config = attention_of(Xl{.segment = 1, .memory = 98}.spec());
    const Matrix one = steps(in, generator);
    for (std::size_t t = 0; t < 400; ++t) {
      CAPTURE(t);
      CHECK(same_row(one, two, t) == (t % 2 == 0 || t < 99));
    }
    // A sequence that ends before the ring is full has a shorter one.
    TwinInputs ending = xl_inputs({.segment = 500, .memory = 700}, 90, generator);
    const Matrix whole = steps(ending, generator);
    ending.dims.max_length = 90;
    const Matrix bounded = steps(ending, generator);
    for (std::size_t t = 0; t < 90; ++t) CHECK(same_row(bounded, whole, t));
  });
}

TEST_CASE("scores of thousands neither overflow nor vanish in transformer_xl") {
  std::mt19937 generator(5);
  TwinInputs in = xl_inputs({.segment = 10, .memory = 90, .scale = 100.0}, 300, generator);
  for (Matrix& own : in.own) std::ranges::fill(own.values(), 0.0f);
  for (std::size_t t = 0; t < 300; ++t) {  // position s has the score 100 * (s mod 90)
    for (const std::size_t head : {0, 8}) {
      std::ranges::fill(in.inputs[0].row(t).subspan(head, 8), 0.0f);
      std::ranges::fill(in.inputs[1].row(t).subspan(head, 8), 0.0f);
      in.inputs[0].row(t)[head] = 1.0f;
      in.inputs[1].row(t)[head] = static_cast<float>(t % 90);
    }
  }
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), xl_twin(in)) < kTwinTolerance); });
}

TEST_CASE("transformer_xl takes a ring of segment and memory, and no more than a sequence has") {
  constexpr std::size_t kRow = 2 * 16 * sizeof(float);  // a key and a value of 2 heads of 8
  std::mt19937 generator(6);
  for (const auto& [max_length, positions] : {std::pair{0, 100}, {1000, 100}, {70, 70}}) {
    CAPTURE(max_length);
    const auto backend = make_attention(
        xl_inputs({.segment = 60, .memory = 40, .max_length = max_length}, 1, generator).params());
    for (const std::int64_t n : {0, 1, 1'000'000}) {
      CHECK(backend->state_bytes(n) == static_cast<std::size_t>(positions) * kRow);
    }
    CHECK(backend->tokens_until_full() == 0);
  }
}

TEST_CASE("an odd d_model is refused by name for transformer_xl") {
  const LayerDims dims{.d_model = 15, .n_heads = 3, .d_head = 5};
  CHECK_THROWS_WITH(
      check_attention(attention_of("transformer_xl:segment_length=4,memory_length=4"), dims, "f",
                      ""),
      Contains("f: key \"type\": found \"transformer_xl\" with d_model = 15, expected an even"));
}

TEST_CASE("the memory estimate of a model includes the distances of transformer_xl") {
  const testing::TemporaryDirectory directory;
  ModelConfig config = testing::tiny_config(testing::TinyModel::kBytes);
  config.max_length = 0;
  const auto resident = [&](const Xl& xl) {
    config.attention.assign(config.attention.size(), attention_of(xl.spec()));
    write_random_model(directory.path(), config, 3);
    return measure_model(ModelFiles(directory.path()), {}).resident_bytes;
  };
  const std::size_t width = static_cast<std::size_t>(config.dims().width()) * sizeof(float);
  const std::size_t layers = config.attention.size();
  const std::size_t few = resident({.segment = 32, .memory = 32});
  CHECK(resident({.segment = 32, .memory = 992}) - few == layers * 960 * width);
  CHECK(resident({.segment = 32, .memory = 992, .clamp = 63}) == few);
}

}  // namespace
}  // namespace lintel
