// SPDX-License-Identifier: Apache-2.0
// Linformer against a twin that does what the formulas say, in double precision.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "tests/model/attention/state_bytes.h"
#include "tests/model/attention/twin.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/catch.h"

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

TwinInputs linformer_inputs(const std::string& spec, int n_heads, int d_head, std::size_t n,
                            std::int64_t max_length, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  TwinInputs in{attention_of(spec),
                {.d_model = n_heads * d_head,
                 .n_heads = n_heads,
                 .d_head = d_head,
                 .max_length = max_length}};
  for (const OwnTensor& tensor : own_tensors(in.config, in.dims)) {
    in.own.push_back(TensorSpec{tensor.name, tensor.shape}.new_matrix());
    draw_tensor(in.own.back().values(), tensor, generator(), /*layer=*/0, in.own.size());
  }
  for (int i = 0; i < 3; ++i) {
    Matrix& input = in.inputs.emplace_back(n, static_cast<std::size_t>(n_heads * d_head));
    for (float& x : input.values()) x = normal(generator);
  }
  return in;
}

// Slot m of a head: the sum over positions first .. last - 1 of proj[m, column] x, where the first
// of them has column 0.
Row projected(const TwinInputs& in, const Matrix& proj, int input, int head, std::size_t m,
              std::size_t first, std::size_t last) {
  const std::size_t row =
      (in.config.boolean("per_head") ? head : 0) * in.config.integer("rank") + m;
  Row sum(in.dims.d_head, 0.0);
  for (std::size_t s = first; s < last; ++s) {
    const auto x = head_of(in.inputs[input], s, head, in.dims.d_head);
    for (std::size_t c = 0; c < x.size(); ++c) sum[c] += double{proj.row(row)[s - first]} * x[c];
  }
  return sum;
}

Rows linformer_twin(const TwinInputs& in) {
  const std::size_t rank = in.config.integer("rank");
  const bool prefix = in.config.choice("mode") == "prefix";
  const Matrix& of_values = in.own[in.config.boolean("share_key_value") ? 0 : 1];
  const int d_head = in.dims.d_head;
  Rows outputs(in.num_tokens());
  for (int h = 0; h < in.dims.n_heads; ++h) {
    for (std::size_t t = 0; t < in.num_tokens(); ++t) {
      Rows keys;
      Rows values;
      const auto add_slots = [&](std::size_t first, std::size_t last) {
        for (std::size_t m = 0; m < rank; ++m) {
          keys.push_back(projected(in, in.own[0], 1, h, m, first, last));
          values.push_back(projected(in, of_values, 2, h, m, first, last));
        }
      };
      if (prefix) {
        add_slots(0, t + 1);
      } else {
        const std::size_t size = in.config.integer("block_size");
        const std::size_t own = t / size * size;
        for (std::size_t first = 0; first < own; first += size) add_slots(first, first + size);
        for (std::size_t s = own; s <= t; ++s) {
          const auto k = head_of(in.inputs[1], s, h, d_head);
          const auto v = head_of(in.inputs[2], s, h, d_head);
          keys.emplace_back(k.begin(), k.end());
          values.emplace_back(v.begin(), v.end());
        }
      }
      Row scores;
      for (const Row& k : keys) {
        scores.push_back(in.scale() * dot(head_of(in.inputs[0], t, h, d_head), k));
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double total = 0.0;
      for (double& score : scores) total += score = std::exp(score - largest);
      Row out(d_head, 0.0);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        for (int c = 0; c < d_head; ++c) out[c] += scores[i] / total * values[i][c];
      }
      outputs[t].insert(outputs[t].end(), out.begin(), out.end());
    }
  }
  return outputs;
}

void check_twin(const TwinInputs& in, std::mt19937& generator) {
  const Rows expected = linformer_twin(in);
  testing::for_each_instruction_set([&] {
    CHECK(largest_difference(steps(in, generator), expected) < kTwinTolerance);
    CHECK(largest_difference(full_pass(in), expected) < kTwinTolerance);
  });
}

TEST_CASE("linformer follows its formulas, with random settings", "[rows]") {
  std::mt19937 generator(1);
  CAPTURE("seed 1");
  const auto up_to = [&](std::size_t most) { return 1 + generator() % most; };
  for (int i = 0; i < 40; ++i) {
    const int n_heads = static_cast<int>(up_to(3));
    const int d_head = std::vector{1, 5, 8, 16, 33, 80}[generator() % 6];
    const std::size_t n = up_to(150);
    const bool prefix = generator() % 2 == 0;
    const std::size_t max_length = prefix ? n + generator() % 9 : generator() % 2 * n;
    std::string spec = "linformer:mode=" + std::string(prefix ? "prefix" : "blocks") +
                       ",rank=" + std::to_string(up_to(generator() % 4 == 0 ? 140 : 20));
    if (!prefix) spec += ",block_size=" + std::to_string(up_to(generator() % 3 == 0 ? 160 : 12));
    if (generator() % 2 == 0) spec += ",per_head=true";
    if (generator() % 2 == 0) spec += ",share_key_value=true";
    if (generator() % 2 == 0) spec += ",scale=0.3";
    CAPTURE(i, spec, n_heads, d_head, n, max_length);
    check_twin(linformer_inputs(spec, n_heads, d_head, n, static_cast<std::int64_t>(max_length),
                                generator),
               generator);
  }
}

TEST_CASE("linformer with blocks of one position, with one slot, and of one block alone") {
  std::mt19937 generator(2);
  for (const char* const spec :
       {"linformer:mode=blocks,rank=1,block_size=1", "linformer:mode=blocks,rank=3,block_size=1",
        "linformer:mode=blocks,rank=1,block_size=64", "linformer:mode=blocks,rank=2,block_size=65",
        "linformer:mode=blocks,rank=64,block_size=130",
        "linformer:mode=blocks,rank=4,block_size=500", "linformer:mode=prefix,rank=1",
        "linformer:mode=prefix,rank=1,per_head=true"}) {
    CAPTURE(spec);
    check_twin(linformer_inputs(spec, 2, 8, 200, 200, generator), generator);
  }
}

TEST_CASE(
    "linformer of as many slots as a block has positions, projected by the identity, is softmax") {
  std::mt19937 generator(3);
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    CAPTURE(size);
    const std::string rank = std::to_string(size);
    TwinInputs in = linformer_inputs(
        "linformer:mode=blocks,rank=" + rank + ",block_size=" + rank + ",share_key_value=true", 2,
        16, 200, 0, generator);
    for (float& x : in.own[0].values()) x = 0.0f;
    for (std::size_t m = 0; m < size; ++m) in.own[0].row(m)[m] = 1.0f;
    TwinInputs softmax{attention_of("softmax"), in.dims};
    for (const Matrix& input : in.inputs) {
      Matrix& copy = softmax.inputs.emplace_back(input.rows(), input.cols());
      std::ranges::copy(input.values(), copy.values().begin());
    }
    const Matrix expected = full_pass(softmax);
    const Matrix got = steps(in, generator);
    for (std::size_t i = 0; i < got.values().size(); ++i) {
      REQUIRE(got.values()[i] == Approx(expected.values()[i]).margin(2e-6));
    }
  }
}

TEST_CASE("keys of thousands neither overflow nor vanish in linformer") {
  std::mt19937 generator(4);
  for (const char* const spec :
       {"linformer:mode=blocks,rank=3,block_size=8", "linformer:mode=prefix,rank=5"}) {
    CAPTURE(spec);
    TwinInputs in = linformer_inputs(spec, 1, 4, 100, 100, generator);
    for (float& k : in.inputs[1].values()) k = std::round(k) * 2048.0f;
    for (float& q : in.inputs[0].values()) q = std::round(q);
    for (Matrix& proj : in.own) {
      for (float& x : proj.values()) x = std::round(16.0f * x) / 16.0f;  // so that sums are exact
    }
    check_twin(in, generator);
  }
}

TEST_CASE("linformer takes the memory of its slots, and of the pages that it needs") {
  std::mt19937 generator(5);
  constexpr std::size_t kRow = 2 * 16 * sizeof(float);  // a key and a value of 2 heads of 8
  SECTION("prefix: always the same") {
    const TwinInputs in =
        linformer_inputs("linformer:mode=prefix,rank=21", 2, 8, 1, 300, generator);
    const auto backend = make_attention(in.params());
    for (const std::int64_t n : {0, 1, 300}) CHECK(backend->state_bytes(n) == 21 * kRow);
    CHECK(backend->block_floats() * sizeof(float) == 21 * kRow);
    CHECK(backend->tokens_until_full() == 0);
  }
  SECTION("blocks: pages of 64 for the summaries, and for the own block") {
    const TwinInputs in =
        linformer_inputs("linformer:mode=blocks,rank=5,block_size=70", 2, 8, 1500, 0, generator);
    const auto backend = make_attention(in.params());
    const auto state = backend->new_state({});
    LayerState* const only = state.get();
    AttentionScratch scratch;
    Matrix out(1, 16);
    CHECK(state->bytes() == 0);
    for (std::size_t t = 0; t < in.num_tokens(); ++t) {
      backend->step({&only, 1}, in.rows(t, 1), out.view(), scratch);
      CAPTURE(t);
      REQUIRE(state->bytes() == backend->state_bytes(static_cast<std::int64_t>(t) + 1));
      const std::size_t summaries = t / 70 * 5;
      const std::size_t pages = (summaries + 63) / 64 + (t < 64 ? 1 : 2);
      REQUIRE(state->bytes() / (64 * kRow) == pages);
    }
    CHECK(backend->state_bytes(std::int64_t{1} << 40) == SIZE_MAX);
    state->reset();
    CHECK(state->bytes() == 0);
  }
}

TEST_CASE("linformer's keys that do not go together are refused by name") {
  const auto error_of = [](const std::string& spec, std::int64_t max_length) -> std::string {
    const LayerDims dims{.d_model = 16, .n_heads = 2, .d_head = 8, .max_length = max_length};
    try {
      check_attention(attention_of(spec), dims, "f", "");
    } catch (const ModelError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(error_of("linformer:mode=blocks,rank=4,block_size=8", 0) == "accepted");
  CHECK(error_of("linformer:mode=prefix,rank=4", 100) == "accepted");
  CHECK_THAT(error_of("linformer:mode=blocks,rank=4", 100),
             Contains("f: key \"block_size\": found null, expected a number for mode \"blocks\""));
  CHECK_THAT(error_of("linformer:mode=prefix,rank=4,block_size=8", 100),
             Contains("f: key \"block_size\": found 8, expected null for mode \"prefix\""));
  CHECK_THAT(
      error_of("linformer:mode=prefix,rank=4", 0),
      Contains("f: key \"mode\": found \"prefix\", expected \"blocks\" where max_length is 0"));
  CHECK_THAT(
      error_of("linformer:mode=prefix,rank=65536", INT32_MAX),
      Contains("f: key \"rank\": found 65536, expected proj_k of at most 1073741824 values"));
  CHECK_THAT(error_of("linformer:mode=blocks,rank=1024,block_size=1048576,per_head=true", 0),
             Contains("f: key \"rank\": found 1024"));
  CHECK(error_of("linformer:mode=blocks,rank=1024,block_size=1048576", 0) == "accepted");
}

TEST_CASE("a saved state of linformer cannot be of positions that have no column") {
  std::mt19937 generator(6);
  const auto backend_of = [&](std::int64_t max_length) {
    return make_attention(
        linformer_inputs("linformer:mode=prefix,rank=3", 1, 4, 1, max_length, generator).params());
  };
  const auto longer = backend_of(60);
  const auto shorter = backend_of(40);
  std::vector<float> block(longer->block_floats());
  const TwinInputs in = linformer_inputs("linformer:mode=prefix,rank=3", 1, 4, 41, 60, generator);
  const auto save_after = [&](std::size_t n) {
    std::ranges::fill(block, 0.0f);
    const auto state = longer->new_state(block);
    const std::vector<LayerState*> states(n, state.get());
    AttentionScratch scratch;
    Matrix out(n, 4);
    longer->step(states, in.rows(0, n), out.view(), scratch);
    testing::StateBytes saved;
    state->save(0, saved);
    return saved;
  };
  testing::StateBytes last = save_after(40);
  CHECK_NOTHROW(shorter->new_state(block)->load(40, last));
  testing::StateBytes beyond = save_after(41);
  CHECK_THROWS_WITH(shorter->new_state(block)->load(41, beyond),
                    Contains("found position 41, expected 0 to 40"));
}

}  // namespace
}  // namespace lintel
