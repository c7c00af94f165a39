// SPDX-License-Identifier: Apache-2.0
// What softmax over patterns of positions keeps: how much, and that nothing that happens to a state
// on its way shows in it.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "model/config/attention_spec.h"
#include "tests/model/attention/pattern_cases.h"
#include "tests/model/attention/state_bytes.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::PatternCase;
using testing::StateBytes;
using testing::TwinInputs;

constexpr unsigned kStateSeed = 30;

// A state with its block.
struct PatternSequence {
  explicit PatternSequence(const AttentionBackend& backend)
      : floats(backend.block_floats()),
        block(make_aligned<float>(floats)),
        state(backend.new_state({block.get(), floats})) {}

  std::vector<std::byte> saved(std::size_t since) const {
    StateBytes out;
    state->save(static_cast<std::int64_t>(since), out);
    return out.bytes;
  }

  std::size_t floats;
  AlignedArray<float> block;
  std::unique_ptr<LayerState> state;
};

void feed(const AttentionBackend& backend, PatternSequence& sequence, const TwinInputs& in,
          std::size_t first, std::size_t count, MatrixView<float> out) {
  AttentionScratch scratch;
  const std::vector<LayerState*> states(count, sequence.state.get());
  backend.step(states, in.rows(first, count), out, scratch);
}

void swap_rows(TwinInputs& a, TwinInputs& b, std::size_t first, std::size_t count) {
  for (std::size_t i = 0; i < a.inputs.size(); ++i) {
    for (std::size_t r = first; r < first + count; ++r) {
      std::ranges::swap_ranges(a.inputs[i].row(r), b.inputs[i].row(r));
    }
  }
}

// Bytes of so many keys and values of all heads, as History rounds them up: pages of 64, and a
// table of addresses that grows by a cache line.
std::size_t in_pages(const TwinInputs& in, std::size_t positions) {
  const std::size_t pages = (positions + 63) / 64;
  return pages * 64 * 2 * static_cast<std::size_t>(in.dims.width()) * sizeof(float) +
         (pages + 7) / 8 * 64;
}

// Keys and values that n tokens leave, by kind: those that grow, and those that have their bound
// from the beginning.
struct Positions {
  std::size_t growing = 0;
  std::size_t bounded = 0;
};
Positions positions_after(const TwinInputs& in, std::size_t n) {
  const AttentionConfig& config = in.config;
  const std::string type = config.type();
  const std::size_t most =
      in.dims.max_length == 0 ? SIZE_MAX : static_cast<std::size_t>(in.dims.max_length);
  if (type == "bigbird") return {.growing = n};
  if (type == "longformer") {
    const std::vector<std::int64_t> dilations = config.integers("dilation");
    const std::size_t global = config.integer("global_tokens");
    const auto widest = static_cast<std::size_t>(*std::ranges::max_element(dilations));
    // min(n, G) + min(max(n - G, 0), (W - 1) max d + 1) where n is as large as it gets.
    const std::size_t span = (config.integer("window") - 1) * widest + 1;
    return {.bounded = std::min(most, global) + std::min(most - std::min(most, global), span)};
  }
  const std::size_t l = config.integer("stride");
  const std::string part = config.choice("part");
  const bool any_far = part != "local" && (part != "by_head" || in.dims.n_heads > 1);
  if (config.choice("pattern") == "strided") {
    if (any_far) return {.growing = n};
    return {.bounded = std::min(most, l)};
  }
  // Each head keeps the columns of its group from every block before the own one.
  const std::size_t blocks = n == 0 ? 0 : (n - 1) / l;
  return {.growing = any_far ? blocks * config.integer("columns") : 0,
          .bounded = std::min(most, l)};
}

TEST_CASE("softmax over a pattern keeps what the formulas say, and says so beforehand") {
  std::mt19937 generator(kStateSeed);
  for (const PatternCase& which : testing::pattern_cases(generator)) {
    const TwinInputs in = testing::pattern_inputs(which, generator);
    const Positions bound = positions_after(in, 0);
    if (bound.bounded > 100'000) continue;  // gigabytes for nothing
    const auto backend = make_attention(in.params());
    PatternSequence sequence(*backend);
    const std::size_t width = static_cast<std::size_t>(in.dims.width());
    Matrix out(1, width);
    for (std::size_t n = 0; n <= which.n; ++n) {
      CAPTURE(kStateSeed, which.config, which.n_heads, which.max_length, n);
      if (n > 0) feed(*backend, sequence, in, n - 1, 1, out.view());
      const Positions kept = positions_after(in, n);
      const std::size_t expected =
          in_pages(in, kept.growing) + kept.bounded * 2 * width * sizeof(float);
      REQUIRE(sequence.state->bytes() == expected);
      REQUIRE(backend->state_bytes(static_cast<std::int64_t>(n)) == expected);
    }
    const bool grows = positions_after(in, 10'000'000).growing > 0;
    CHECK(backend->tokens_until_full() == (grows ? kNeverFull : 0));
    CHECK(backend->block_floats() == bound.bounded * 2 * width);
    sequence.state->reset();
    CHECK(sequence.state->bytes() == backend->state_bytes(0));
    CHECK(std::all_of(sequence.block.get(), sequence.block.get() + sequence.floats,
                      [](float x) { return x == 0.0f; }));
  }
}

TEST_CASE("the bytes of a pattern's state saturate at the largest number") {
  std::mt19937 generator(kStateSeed);
  const PatternCase which{R"({"type": "bigbird", "block_size": 4})", 2, 8, 10};
  const TwinInputs in = testing::pattern_inputs(which, generator);
  CHECK(make_attention(in.params())->state_bytes(INT64_MAX) == SIZE_MAX);
}

// Slices, drafts of which some are taken back, copies, and states saved and loaded, whole and what
// came since: after all of it outputs, block and what is saved are those of single steps.
TEST_CASE("a pattern's state is that of single steps after slices, drafts, copies and loads",
          "[rows]") {
  std::mt19937 generator(kStateSeed + 1);
  for (const PatternCase& which : testing::pattern_cases(generator)) {
    TwinInputs in = testing::pattern_inputs(which, generator);
    TwinInputs wrong = testing::pattern_inputs(which, generator);
    if (positions_after(in, 0).bounded > 100'000) continue;
    CAPTURE(kStateSeed, which.config, which.n_heads, which.d_head, which.n, which.max_length);
    const auto backend = make_attention(in.params());
    const std::size_t width = static_cast<std::size_t>(in.dims.width());
    PatternSequence plain(*backend);
    PatternSequence follower(*backend);
    auto tried = std::make_unique<PatternSequence>(*backend);
    Matrix expected(which.n, width);
    Matrix got(which.n, width);
    std::size_t followed = 0;
    for (std::size_t t = 0; t < which.n;) {
      CAPTURE(t);
      // Rows that stay, drafts that stay, and drafts that are taken back.
      const std::size_t stay = std::min<std::size_t>(1 + generator() % 30, which.n - t);
      const std::size_t right = std::min<std::size_t>(generator() % 5, which.n - t - stay);
      const std::size_t lost = std::min<std::size_t>(generator() % 20, which.n - t - stay - right);
      const std::size_t fed = stay + right + lost;
      std::vector<float> memory(backend->rollback_floats(right + lost, 0), -7.5f);
      tried->state->begin_speculation(right + lost, memory);
      swap_rows(in, wrong, t + stay + right, lost);
      feed(*backend, *tried, in, t, fed, got.view().rows_from(t, fed));
      swap_rows(in, wrong, t + stay + right, lost);
      tried->state->rollback(lost);
      for (const std::size_t end = t + stay + right; t < end; ++t) {
        feed(*backend, plain, in, t, 1, expected.view().rows_from(t, 1));
      }
      REQUIRE(std::equal(plain.block.get(), plain.block.get() + plain.floats, tried->block.get()));
      REQUIRE(tried->state->bytes() == plain.state->bytes());
      REQUIRE(tried->saved(0) == plain.saved(0));

      if (generator() % 3 == 0) {
        StateBytes since;
        tried->state->save(static_cast<std::int64_t>(followed), since);
        followed = t;
        follower.state->load(static_cast<std::int64_t>(followed), since);
        REQUIRE(follower.saved(0) == plain.saved(0));
      }
      if (generator() % 3 == 0) {
        auto next = std::make_unique<PatternSequence>(*backend);
        next->state->assign(*tried->state);
        tried = std::move(next);
      }
    }
    REQUIRE(std::ranges::equal(expected.values(), got.values()));
  }
}

TEST_CASE("a pattern's saved state that cannot be is refused") {
  std::mt19937 generator(kStateSeed + 2);
  const PatternCase which{R"({"type": "bigbird", "block_size": 4, "random_blocks": 1})", 2, 8, 100,
                          120};
  const TwinInputs in = testing::pattern_inputs(which, generator);
  const auto backend = make_attention(in.params());
  PatternSequence sequence(*backend);
  Matrix out(which.n, 16);
  feed(*backend, sequence, in, 0, which.n, out.view());
  const auto refused = [&](std::size_t at, std::uint64_t value, std::int64_t position) {
    StateBytes lie;
    lie.bytes = sequence.saved(0);
    std::memcpy(lie.bytes.data() + at, &value, sizeof(value));
    PatternSequence other(*backend);
    CHECK_THROWS_AS(other.state->load(position, lie), ModelError);
  };
  refused(0, 1, 100);   // since
  refused(8, 99, 100);  // other positions than the sequence has
  refused(8, 100, 99);
  refused(8, 99, 99);    // one less than there are rows
  refused(8, 101, 101);  // more than there are rows
  refused(8, 121, 121);  // more than can be fed
  refused(8, UINT64_MAX, INT64_MAX);
  refused(24, 99, 100);  // rows

  const PatternCase longer{which.config, which.n_heads, which.d_head, 130, 200};
  const TwinInputs more = testing::pattern_inputs(longer, generator);
  const auto other = make_attention(more.params());
  PatternSequence beyond(*other);
  Matrix outputs(longer.n, 16);
  feed(*other, beyond, more, 0, longer.n, outputs.view());
  StateBytes saved;
  beyond.state->save(0, saved);
  sequence.state->reset();
  CHECK_THROWS_AS(sequence.state->load(130, saved),
                  ModelError);  // more than can be fed, and all there
}

}  // namespace
}  // namespace lintel
