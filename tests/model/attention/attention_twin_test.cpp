// Softmax and LSH attention against twins that do what the formulas say: in double precision, with
// everything sorted anew at every position.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "model/attention/attention.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/model/support/reference.h"

namespace lintel {
namespace {

using testing::Row;
using testing::Rows;

constexpr double kTolerance = 2e-5;  // of outputs that are means of N(0, 1) values

struct Inputs {
  AttentionParams params;
  std::vector<float> planes;
  Matrix q, k, v;  // [n, H*D]
};

std::span<const float> head_of(const Matrix& rows, std::size_t t, int head, int d_head) {
  return rows.row(t).subspan(static_cast<std::size_t>(head) * d_head, d_head);
}

double dot(std::span<const float> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += double{a[c]} * b[c];
  return sum;
}

Row key_of(std::span<const float> q) {
  double square = 0.0;
  for (const float x : q) square += double{x} * x;
  Row k(q.begin(), q.end());
  for (double& x : k) x /= std::sqrt(square);
  return k;
}

struct Hashed {
  int bucket = 0;
  double margin = 0.0;  // from the best to the second
};

Hashed hash(const Inputs& in, int round, const Row& k) {
  const int bits = in.params.config.bits;
  std::vector<double> projected;
  for (int i = 0; i < bits; ++i) {
    const std::size_t plane = (static_cast<std::size_t>(round) * bits + i) * k.size();
    projected.push_back(dot({in.planes.data() + plane, k.size()}, k));
  }
  for (int i = 0; i < bits; ++i) projected.push_back(-projected[i]);
  const auto best = std::max_element(projected.begin(), projected.end());
  Hashed result{static_cast<int>(best - projected.begin()), 0.0};
  double second = -1e9;
  for (auto at = projected.begin(); at != projected.end(); ++at) {
    if (at != best) second = std::max(second, *at);
  }
  result.margin = *best - second;
  return result;
}

Inputs normal_inputs(const AttentionConfig& config, int n_heads, int d_head, std::size_t n,
                     std::mt19937& generator) {
  std::normal_distribution<float> normal;
  const auto width = static_cast<std::size_t>(n_heads) * d_head;
  Inputs in{.params = {.config = config, .n_heads = n_heads, .d_head = d_head}};
  in.planes.resize(static_cast<std::size_t>(config.rounds) * config.bits * d_head);
  for (float& x : in.planes) x = normal(generator);
  for (Matrix* matrix : {&in.q, &in.k, &in.v}) {
    *matrix = Matrix(n, width);
    for (float& x : matrix->values()) x = normal(generator);
  }
  // No hash is a matter of rounding.
  for (std::size_t t = 0; t < n && config.bits > 0; ++t) {
    for (int h = 0; h < n_heads; ++h) {
      for (int round = 0; round < config.rounds; ++round) {
        const std::span<float> q =
            in.q.row(t).subspan(static_cast<std::size_t>(h) * d_head, d_head);
        if (hash(in, round, key_of(q)).margin > 1e-4) continue;
        for (float& x : q) x = normal(generator);
        round = -1;  // all rounds again
      }
    }
  }
  in.params.planes = in.planes;
  return in;
}

double scale_of(const Inputs& in) {
  return in.params.config.scale != 0.0 ? in.params.config.scale : 1.0 / std::sqrt(in.params.d_head);
}

// Softmax over scores of a set of positions; also the logarithm of the sum of exponentials.
double attend(const std::vector<double>& scores, const std::vector<std::size_t>& positions,
              const Matrix& v, int head, int d_head, Row& out) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(score - largest);
  out.assign(d_head, 0.0);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto value = head_of(v, positions[i], head, d_head);
    for (int m = 0; m < d_head; ++m) out[m] += std::exp(scores[i] - largest) / sum * value[m];
  }
  return largest + std::log(sum);
}

Rows softmax_twin(const Inputs& in) {
  Rows outputs;
  for (std::size_t t = 0; t < in.q.rows(); ++t) {
    Row all;
    for (int h = 0; h < in.params.n_heads; ++h) {
      std::vector<double> scores;
      std::vector<std::size_t> positions;
      for (std::size_t s = 0; s <= t; ++s) {
        const auto k = head_of(in.k, s, h, in.params.d_head);
        scores.push_back(scale_of(in) *
                         dot(head_of(in.q, t, h, in.params.d_head), Row(k.begin(), k.end())));
        positions.push_back(s);
      }
      Row out;
      attend(scores, positions, in.v, h, in.params.d_head, out);
      all.insert(all.end(), out.begin(), out.end());
    }
    outputs.push_back(all);
  }
  return outputs;
}

// Position t among the first n: what `streaming` sees has n = t + 1, a full pass all positions.
Row lsh_twin_head(const Inputs& in, std::size_t t, std::size_t n, int h) {
  const AttentionConfig& config = in.params.config;
  const int d_head = in.params.d_head;
  std::vector<Row> outs(config.rounds);
  std::vector<double> log_sums;
  for (int round = 0; round < config.rounds; ++round) {
    std::vector<int> buckets;
    for (std::size_t s = 0; s < n; ++s) {
      buckets.push_back(hash(in, round, key_of(head_of(in.q, s, h, d_head))).bucket);
    }
    std::vector<std::size_t> sorted(n);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::size_t a, std::size_t b) { return buckets[a] < buckets[b]; });
    const auto chunk = [&](std::size_t position) {
      return (std::find(sorted.begin(), sorted.end(), position) - sorted.begin()) /
             config.chunk_size;
    };
    std::vector<double> scores;
    std::vector<std::size_t> positions;
    const auto own = chunk(t);
    for (std::size_t s = 0; s <= t; ++s) {
      const auto other = chunk(s);
      if (other != own && other != own - 1) continue;
      const double score =
          scale_of(in) * dot(head_of(in.q, t, h, d_head), key_of(head_of(in.q, s, h, d_head)));
      scores.push_back(score - (s == t && config.mask_self ? 1e9 : 0.0));
      positions.push_back(s);
    }
    log_sums.push_back(attend(scores, positions, in.v, h, d_head, outs[round]));
  }
  const double largest = *std::max_element(log_sums.begin(), log_sums.end());
  std::vector<double> weights(config.rounds, 1.0);
  if (config.combine == RoundCombination::kLogSumExp) {
    for (int round = 0; round < config.rounds; ++round) {
      weights[round] = std::exp(log_sums[round] - largest);
    }
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  Row out(d_head, 0.0);
  for (int round = 0; round < config.rounds; ++round) {
    for (int m = 0; m < d_head; ++m) out[m] += weights[round] / total * outs[round][m];
  }
  return out;
}

Rows lsh_twin(const Inputs& in, bool streaming) {
  Rows outputs;
  for (std::size_t t = 0; t < in.q.rows(); ++t) {
    Row all;
    for (int h = 0; h < in.params.n_heads; ++h) {
      const Row out = lsh_twin_head(in, t, streaming ? t + 1 : in.q.rows(), h);
      all.insert(all.end(), out.begin(), out.end());
    }
    outputs.push_back(all);
  }
  return outputs;
}

// In slices of random lengths.
Matrix steps(const Inputs& in, std::mt19937& generator) {
  const auto backend = make_attention(in.params);
  const auto state = backend->new_state({});
  AttentionScratch scratch;
  Matrix out(in.q.rows(), in.q.cols());
  for (std::size_t t = 0; t < in.q.rows();) {
    const std::size_t count = std::min<std::size_t>(1 + generator() % 9, in.q.rows() - t);
    const std::vector<AttentionState*> states(count, state.get());
    backend->step(states, in.q.view().rows_from(t, count), in.k.view().rows_from(t, count),
                  in.v.view().rows_from(t, count), out.view().rows_from(t, count), scratch);
    t += count;
  }
  return out;
}

Matrix full_pass(const Inputs& in) {
  const auto backend = make_attention(in.params);
  AttentionScratch scratch;
  Matrix out(in.q.rows(), in.q.cols());
  backend->full_pass(in.q.view(), in.k.view(), in.v.view(), out.view(), scratch);
  return out;
}

double largest_difference(const Matrix& got, const Rows& expected) {
  double largest = 0.0;
  for (std::size_t t = 0; t < expected.size(); ++t) {
    for (std::size_t m = 0; m < expected[t].size(); ++m) {
      const double difference = std::abs(double{got.row(t)[m]} - expected[t][m]);
      // NaN counts as a difference.
      largest = difference <= largest ? largest : difference;
    }
  }
  return largest;
}

TEST_CASE("softmax attention is what the formula says, at every length", "[rows]") {
  std::mt19937 generator(1);
  struct Shape {
    int n_heads;
    int d_head;
    std::size_t n;
    double scale;
  };
  for (const auto& [n_heads, d_head, n, scale] :
       {Shape{2, 8, 200, 0.0}, Shape{1, 1, 70, 0.0}, Shape{3, 5, 64, 0.7}, Shape{1, 33, 129, 0.0},
        Shape{2, 32, 65, 0.3}, Shape{1, 80, 66, 0.0}, Shape{1, 64, 63, 0.0}}) {
    CAPTURE(n_heads, d_head, n, scale);
    const Inputs in =
        normal_inputs({.type = "softmax", .scale = scale}, n_heads, d_head, n, generator);
    const Rows expected = softmax_twin(in);
    testing::for_each_instruction_set([&] {
      CHECK(largest_difference(steps(in, generator), expected) < kTolerance);
      CHECK(largest_difference(full_pass(in), expected) < kTolerance);
    });
  }
}

TEST_CASE("scores of thousands neither overflow nor vanish in softmax attention") {
  // Position s has the score 100 * (s mod 90), so that the largest changes and stays far away.
  constexpr std::size_t kLength = 300;
  Inputs in{.params = {.config = {.type = "softmax", .scale = 100.0}, .n_heads = 1, .d_head = 4}};
  in.q = Matrix(kLength, 4);
  in.k = Matrix(kLength, 4);
  in.v = Matrix(kLength, 4);
  for (std::size_t t = 0; t < kLength; ++t) {
    in.q.row(t)[0] = 1.0f;
    in.k.row(t)[0] = static_cast<float>(t % 90);
    for (float& x : in.v.row(t)) x = static_cast<float>(t);
  }
  std::mt19937 generator(2);
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), softmax_twin(in)) < kTolerance); });
  for (float& x : in.k.values()) x -= 200.0f;  // all of them far below zero
  testing::for_each_instruction_set(
      [&] { CHECK(largest_difference(steps(in, generator), softmax_twin(in)) < kTolerance); });
}

TEST_CASE("softmax attention takes exactly the pages it needs") {
  const auto backend = make_attention({.config = {.type = "softmax"}, .n_heads = 2, .d_head = 8});
  const Inputs in = [] {
    std::mt19937 generator(3);
    return normal_inputs({.type = "softmax"}, 2, 8, 1000, generator);
  }();
  const auto state = backend->new_state({});
  AttentionScratch scratch;
  Matrix out(1, 16);
  AttentionState* const only = state.get();
  CHECK(state->bytes() == 0);
  for (std::size_t t = 0; t < 1000; ++t) {
    backend->step({&only, 1}, in.q.view().rows_from(t, 1), in.k.view().rows_from(t, 1),
                  in.v.view().rows_from(t, 1), out.view(), scratch);
    const auto tokens = static_cast<std::int64_t>(t) + 1;
    REQUIRE(state->bytes() == backend->state_bytes(tokens));
    const std::size_t pages = (t + 64) / 64;
    REQUIRE(state->bytes() / (64 * 16 * 2 * sizeof(float)) == pages);
  }
  state->reset();
  CHECK(state->bytes() == 0);
}

struct LshCase {
  int rounds;
  int bits;
  int chunk_size;
  bool mask_self;
  RoundCombination combine;
  int n_heads;
  int d_head;
  std::size_t n;
};

std::vector<LshCase> lsh_cases() {
  constexpr auto kMean = RoundCombination::kMean;
  constexpr auto kLogSumExp = RoundCombination::kLogSumExp;
  return {{1, 8, 32, true, kMean, 2, 16, 150},     {4, 8, 32, true, kMean, 1, 16, 100},
          {2, 3, 5, true, kLogSumExp, 2, 5, 90},   {1, 1, 1, true, kMean, 1, 4, 40},
          {3, 2, 7, false, kLogSumExp, 1, 33, 80}, {2, 20, 29, false, kMean, 1, 8, 120},
          {1, 17, 64, true, kLogSumExp, 1, 3, 70}, {8, 4, 2, true, kMean, 1, 9, 50},
          {1, 2, 3, true, kMean, 1, 2, 200},       {2, 5, 1000, false, kMean, 1, 6, 60}};
}

TEST_CASE("streaming LSH sees what sorting every prefix anew would show", "[rows]") {
  std::mt19937 generator(4);
  for (const LshCase& c : lsh_cases()) {
    CAPTURE(c.rounds, c.bits, c.chunk_size, c.mask_self, c.n_heads, c.d_head, c.n);
    const AttentionConfig config{.type = "lsh",
                                 .rounds = c.rounds,
                                 .bits = c.bits,
                                 .chunk_size = c.chunk_size,
                                 .mask_self = c.mask_self,
                                 .combine = c.combine};
    const Inputs in = normal_inputs(config, c.n_heads, c.d_head, c.n, generator);
    const Rows streaming = lsh_twin(in, /*streaming=*/true);
    const Rows prefix = lsh_twin(in, /*streaming=*/false);
    testing::for_each_instruction_set([&] {
      const Matrix stepped = steps(in, generator);
      const Matrix passed = full_pass(in);
      CHECK(largest_difference(stepped, streaming) < kTolerance);
      CHECK(largest_difference(passed, prefix) < kTolerance);
    });
  }
}

TEST_CASE("LSH is announced enough memory when tokens agree, and when they spread") {
  const AttentionConfig config{.type = "lsh", .rounds = 3, .bits = 40, .chunk_size = 4};
  std::mt19937 generator(5);
  Inputs in = normal_inputs(config, 2, 8, 500, generator);
  const bool equal = GENERATE(true, false);
  if (equal) {
    for (std::size_t t = 1; t < 500; ++t) std::ranges::copy(in.q.row(0), in.q.row(t).begin());
  }
  const auto backend = make_attention(in.params);
  const auto state = backend->new_state({});
  AttentionState* const only = state.get();
  AttentionScratch scratch;
  Matrix out(1, 16);
  CHECK(state->bytes() == backend->state_bytes(0));
  for (std::size_t t = 0; t < 500; ++t) {
    backend->step({&only, 1}, in.q.view().rows_from(t, 1), {}, in.v.view().rows_from(t, 1),
                  out.view(), scratch);
    REQUIRE(state->bytes() <= backend->state_bytes(static_cast<std::int64_t>(t) + 1));
  }
}

TEST_CASE("a query of zeros is attended to like any other") {
  const AttentionConfig config{.type = "lsh", .rounds = 1, .bits = 2, .chunk_size = 4};
  std::mt19937 generator(6);
  Inputs in = normal_inputs(config, 1, 4, 8, generator);
  std::ranges::fill(in.q.row(3), 0.0f);
  const Matrix stepped = steps(in, generator);
  for (const float x : stepped.values()) CHECK(std::isfinite(x));
  const Matrix passed = full_pass(in);
  for (const float x : passed.values()) CHECK(std::isfinite(x));
}

TEST_CASE("planes of another shape are refused with both sizes") {
  const std::vector<float> planes(11);
  const AttentionParams params{.config = {.type = "lsh", .rounds = 1, .bits = 3, .chunk_size = 4},
                               .n_heads = 1,
                               .d_head = 4,
                               .planes = planes};
  CHECK_THROWS_AS(make_attention(params), ModelError);
  CHECK_THROWS_WITH(make_attention(params), Catch::Contains("11") && Catch::Contains("12"));
}

TEST_CASE("drawn planes are normal, and a function of seed, layer and shape") {
  const AttentionConfig config{.type = "lsh", .rounds = 4, .bits = 32, .chunk_size = 8};
  const std::vector<float> planes = draw_planes(config, 32, 7, 2);
  REQUIRE(planes.size() == 4 * 32 * 32);
  double sum = 0.0;
  double squares = 0.0;
  for (const float x : planes) {
    sum += x;
    squares += double{x} * x;
  }
  const auto n = static_cast<double>(planes.size());
  CHECK(std::abs(sum / n) < 4.0 / std::sqrt(n));
  CHECK(std::abs(squares / n - 1.0) < 4.0 * std::sqrt(2.0 / n));
  CHECK(draw_planes(config, 32, 7, 2) == planes);
  CHECK(draw_planes(config, 32, 8, 2) != planes);
  CHECK(draw_planes(config, 32, 7, 3) != planes);
  CHECK(draw_planes({.type = "softmax"}, 32, 7, 0).empty());
}

}  // namespace
}  // namespace lintel
