// SPDX-License-Identifier: Apache-2.0
// LSH attention against a twin that sorts everything again at every position, in double precision.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "model/config/attention_spec.h"
#include "tests/model/attention/twin.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::attend;
using testing::dot;
using testing::full_pass;
using testing::head_of;
using testing::kTwinTolerance;
using testing::largest_difference;
using testing::normal_inputs;
using testing::Row;
using testing::Rows;
using testing::steps;
using testing::TwinInputs;

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

Hashed hash(const TwinInputs& in, std::size_t round, const Row& k) {
  const int bits = static_cast<int>(in.config.integer("bits"));
  std::vector<double> projected;
  for (int i = 0; i < bits; ++i) {
    const std::size_t plane = (round * bits + i) * k.size();
    projected.push_back(dot({in.own[0].values().data() + plane, k.size()}, k));
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

// Inputs whose hashes are no matter of rounding.
TwinInputs clear_inputs(const AttentionConfig& config, int n_heads, int d_head, std::size_t n,
                        std::mt19937& generator) {
  std::normal_distribution<float> normal;
  TwinInputs in = normal_inputs(config, n_heads, d_head, n, generator);
  for (std::size_t t = 0; t < n; ++t) {
    for (int h = 0; h < n_heads; ++h) {
      for (std::size_t round = 0; round < config.integer("rounds");) {
        const std::span<float> q =
            in.inputs[0].row(t).subspan(static_cast<std::size_t>(h) * d_head, d_head);
        if (hash(in, round, key_of(q)).margin > 1e-4) {
          ++round;
          continue;
        }
        for (float& x : q) x = normal(generator);
        round = 0;  // all rounds again
      }
    }
  }
  return in;
}

// Position t among the first n: what `streaming` sees has n = t + 1, a full pass all positions.
Row lsh_twin_head(const TwinInputs& in, std::size_t t, std::size_t n, int h) {
  const AttentionConfig& config = in.config;
  const std::size_t rounds = config.integer("rounds");
  const int d_head = in.dims.d_head;
  std::vector<Row> outs(rounds);
  std::vector<double> log_sums;
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<int> buckets;
    for (std::size_t s = 0; s < n; ++s) {
      buckets.push_back(hash(in, round, key_of(head_of(in.inputs[0], s, h, d_head))).bucket);
    }
    std::vector<std::size_t> sorted(n);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::size_t a, std::size_t b) { return buckets[a] < buckets[b]; });
    const auto chunk = [&](std::size_t position) {
      return (std::find(sorted.begin(), sorted.end(), position) - sorted.begin()) /
             config.integer("chunk_size");
    };
    std::vector<double> scores;
    std::vector<std::size_t> positions;
    const auto own = chunk(t);
    for (std::size_t s = 0; s <= t; ++s) {
      const auto other = chunk(s);
      if (other != own && other != own - 1) continue;
      const double score = in.scale() * dot(head_of(in.inputs[0], t, h, d_head),
                                            key_of(head_of(in.inputs[0], s, h, d_head)));
      scores.push_back(score - (s == t && config.boolean("mask_self") ? 1e9 : 0.0));
      positions.push_back(s);
    }
    log_sums.push_back(attend(scores, positions, in.inputs[1], h, d_head, outs[round]));
  }
  const double largest = *std::max_element(log_sums.begin(), log_sums.end());
  std::vector<double> weights(rounds, 1.0);
  if (config.choice("combine") == "logsumexp") {
    for (std::size_t round = 0; round < rounds; ++round) {
      weights[round] = std::exp(log_sums[round] - largest);
    }
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  Row out(d_head, 0.0);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (int m = 0; m < d_head; ++m) out[m] += weights[round] / total * outs[round][m];
  }
  return out;
}

Rows lsh_twin(const TwinInputs& in, bool streaming) {
  Rows outputs;
  for (std::size_t t = 0; t < in.num_tokens(); ++t) {
    Row all;
    for (int h = 0; h < in.dims.n_heads; ++h) {
      const Row out = lsh_twin_head(in, t, streaming ? t + 1 : in.num_tokens(), h);
      all.insert(all.end(), out.begin(), out.end());
    }
    outputs.push_back(all);
  }
  return outputs;
}

struct LshCase {
  const char* keys;
  int n_heads;
  int d_head;
  std::size_t n;
};

const LshCase kLshCases[] = {
    {"rounds=1,bits=8,chunk_size=32", 2, 16, 150},
    {"rounds=4,bits=8,chunk_size=32", 1, 16, 100},
    {"rounds=2,bits=3,chunk_size=5,combine=logsumexp", 2, 5, 90},
    {"rounds=1,bits=1,chunk_size=1", 1, 4, 40},
    {"rounds=3,bits=2,chunk_size=7,mask_self=false,combine=logsumexp", 1, 33, 80},
    {"rounds=2,bits=20,chunk_size=29,mask_self=false", 1, 8, 120},
    {"rounds=1,bits=17,chunk_size=64,combine=logsumexp", 1, 3, 70},
    {"rounds=8,bits=4,chunk_size=2", 1, 9, 50},
    {"rounds=1,bits=2,chunk_size=3", 1, 2, 200},
    {"rounds=2,bits=5,chunk_size=1000,mask_self=false", 1, 6, 60}};

TEST_CASE("streaming LSH equals sorting every prefix", "[rows]") {
  std::mt19937 generator(4);
  for (const LshCase& c : kLshCases) {
    CAPTURE(c.keys, c.n_heads, c.d_head, c.n);
    const AttentionConfig config = attention_of(std::string("lsh:") + c.keys);
    const TwinInputs in = clear_inputs(config, c.n_heads, c.d_head, c.n, generator);
    const Rows streaming = lsh_twin(in, /*streaming=*/true);
    const Rows prefix = lsh_twin(in, /*streaming=*/false);
    testing::for_each_instruction_set([&] {
      const Matrix stepped = steps(in, generator);
      const Matrix passed = full_pass(in);
      CHECK(largest_difference(stepped, streaming) < kTwinTolerance);
      CHECK(largest_difference(passed, prefix) < kTwinTolerance);
    });
  }
}

TEST_CASE("LSH is announced enough memory when tokens agree, and when they spread") {
  const AttentionConfig config = attention_of("lsh:rounds=3,bits=40,chunk_size=4");
  std::mt19937 generator(5);
  TwinInputs in = clear_inputs(config, 2, 8, 500, generator);
  const bool equal = GENERATE(true, false);
  if (equal) {
    for (std::size_t t = 1; t < 500; ++t)
      std::ranges::copy(in.inputs[0].row(0), in.inputs[0].row(t).begin());
  }
  const auto backend = make_attention(in.params());
  const auto state = backend->new_state({});
  LayerState* const only = state.get();
  AttentionScratch scratch;
  Matrix out(1, 16);
  CHECK(state->bytes() == backend->state_bytes(0));
  for (std::size_t t = 0; t < 500; ++t) {
    backend->step({&only, 1}, in.rows(t, 1), out.view(), scratch);
    REQUIRE(state->bytes() <= backend->state_bytes(static_cast<std::int64_t>(t) + 1));
  }
}

TEST_CASE("a query of zeros is attended to like any other") {
  const AttentionConfig config = attention_of("lsh:rounds=1,bits=2,chunk_size=4");
  std::mt19937 generator(6);
  TwinInputs in = clear_inputs(config, 1, 4, 8, generator);
  std::ranges::fill(in.inputs[0].row(3), 0.0f);
  const Matrix stepped = steps(in, generator);
  for (const float x : stepped.values()) CHECK(std::isfinite(x));
  const Matrix passed = full_pass(in);
  for (const float x : passed.values()) CHECK(std::isfinite(x));
}

TEST_CASE("drawn planes are normal, and a function of seed, layer and shape") {
  const AttentionConfig config = attention_of("lsh:rounds=4,bits=32,chunk_size=8");
  const std::vector<OwnTensor> own = own_tensors(config, {.d_head = 32});
  REQUIRE(own.size() == 1);
  REQUIRE(own[0].shape == std::vector<std::int64_t>{4, 32, 32});
  const auto draw = [&](std::uint64_t seed, int layer) {
    std::vector<float> planes(4 * 32 * 32);
    draw_tensor(planes, own[0], seed, layer, 0);
    return planes;
  };
  const std::vector<float> planes = draw(7, 2);
  double sum = 0.0;
  double squares = 0.0;
  for (const float x : planes) {
    sum += x;
    squares += double{x} * x;
  }
  const auto n = static_cast<double>(planes.size());
  CHECK(std::abs(sum / n) < 4.0 / std::sqrt(n));
  CHECK(std::abs(squares / n - 1.0) < 4.0 * std::sqrt(2.0 / n));
  CHECK(draw(7, 2) == planes);
  CHECK(draw(8, 2) != planes);
  CHECK(draw(7, 3) != planes);
  std::vector<float> second(planes.size());
  draw_tensor(second, own[0], 7, 2, /*number=*/1);  // were it the layer's second tensor
  CHECK(second != planes);
  CHECK(own_tensors(attention_of("softmax"), {.d_head = 32}).empty());
}

}  // namespace
}  // namespace lintel
