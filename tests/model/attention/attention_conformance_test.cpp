// SPDX-License-Identifier: Apache-2.0
// What every kind of attention keeps. Names none of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/model/attention/attention_layer.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::AttentionLayer;
using testing::same_bits;

TEST_CASE("attention: slices of a prompt give the bits of single steps", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState single = layer.new_sequence();
  const auto expected = layer.walk(single, 0, 0, AttentionLayer::kTokens);
  for (const std::size_t slice : {2, 7, 32, 70}) {
    CAPTURE(slice);
    SequenceState sequence = layer.new_sequence();
    std::vector<std::vector<float>> outputs;
    for (std::size_t t = 0; t < AttentionLayer::kTokens; t += slice) {
      std::vector<AttentionLayer::Fed> rows;
      for (std::size_t i = t; i < std::min(t + slice, AttentionLayer::kTokens); ++i) {
        rows.push_back({&sequence, 0, i});
      }
      for (auto& output : layer.step(rows)) outputs.push_back(std::move(output));
    }
    CHECK(same_bits(outputs, expected));
  }
}

TEST_CASE("attention: a full pass has the bits of steps, all of them or those of its last row",
          "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  const auto steps = layer.walk(sequence, 0, 0, AttentionLayer::kTokens);
  const auto passed = layer.full_pass(0);
  CHECK(same_bits(passed.back(), steps.back()));
  CHECK(same_bits(passed, steps) == layer.backend().full_pass_equals_steps());
}

TEST_CASE("attention: a sequence has the same bits alone and in a batch", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  std::vector<std::vector<std::vector<float>>> alone;
  std::vector<SequenceState> together;
  for (std::size_t s = 0; s < AttentionLayer::kSequences; ++s) {
    SequenceState sequence = layer.new_sequence();
    alone.push_back(layer.walk(sequence, s, 0, AttentionLayer::kTokens));
    together.push_back(layer.new_sequence());
  }
  // Sequence s is s tokens late, and its turn in the batch changes.
  for (std::size_t t = 0; t < AttentionLayer::kTokens + AttentionLayer::kSequences; ++t) {
    std::vector<AttentionLayer::Fed> rows;
    for (std::size_t i = 0; i < AttentionLayer::kSequences; ++i) {
      const std::size_t s = (i + t) % AttentionLayer::kSequences;
      if (t >= s && t - s < AttentionLayer::kTokens) rows.push_back({&together[s], s, t - s});
    }
    const auto outputs = layer.step(rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      CAPTURE(t, r);
      REQUIRE(same_bits(outputs[r], alone[rows[r].source][rows[r].token]));
    }
  }
}

TEST_CASE("attention: steps of a clone do not change the original") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  constexpr std::size_t kFork = 37;
  SequenceState original = layer.new_sequence();
  layer.walk(original, 0, 0, kFork);
  SequenceState clone = original.clone();
  SequenceState undisturbed = layer.new_sequence();
  const auto expected = layer.walk(undisturbed, 0, 0, AttentionLayer::kTokens);

  const auto other = layer.walk(clone, 1, kFork, AttentionLayer::kTokens);
  const auto rest = layer.walk(original, 0, kFork, AttentionLayer::kTokens);
  CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + kFork,
                   [](const auto& a, const auto& b) { return same_bits(a, b); }));
  CHECK_FALSE(same_bits(other, rest));

  SequenceState again = layer.new_sequence();
  layer.walk(again, 0, 0, kFork);
  SequenceState late = again.clone();
  CHECK(same_bits(layer.walk(late, 0, kFork, AttentionLayer::kTokens), rest));
}

TEST_CASE("attention: later tokens never change earlier outputs", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  constexpr std::size_t kChanged = 40;
  const auto in_one_step = [&layer] {
    SequenceState sequence = layer.new_sequence();
    std::vector<AttentionLayer::Fed> rows;
    for (std::size_t t = 0; t < AttentionLayer::kTokens; ++t) rows.push_back({&sequence, 0, t});
    return layer.step(rows);
  };
  const auto before = in_one_step();
  layer.change(0, kChanged);
  const auto after = in_one_step();
  for (std::size_t t = 0; t < AttentionLayer::kTokens; ++t) {
    CAPTURE(t);
    if (t < kChanged) CHECK(same_bits(before[t], after[t]));
  }
  CHECK_FALSE(same_bits(before[kChanged], after[kChanged]));
}

TEST_CASE("attention: memory stays within the announced size") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  CHECK(sequence.layer(0)->bytes() <= layer.backend().state_bytes(0));
  for (std::size_t t = 0; t < AttentionLayer::kTokens; ++t) {
    layer.walk(sequence, 0, t, t + 1);
    const auto tokens = static_cast<std::int64_t>(t) + 1;
    CAPTURE(tokens);
    CHECK(sequence.layer(0)->bytes() <= layer.backend().state_bytes(tokens));
    CHECK(layer.backend().state_bytes(tokens) >= layer.backend().state_bytes(tokens - 1));
    SequenceState clone = sequence.clone();
    CHECK(clone.layer(0)->bytes() <= layer.backend().state_bytes(tokens));
  }
  const std::int64_t full = layer.backend().tokens_until_full();
  if (full == kNeverFull) {
    CHECK(layer.backend().state_bytes(2'000'000) > layer.backend().state_bytes(1'000'000));
    return;
  }
  REQUIRE(full < static_cast<std::int64_t>(AttentionLayer::kTokens));
  CHECK(layer.backend().state_bytes(full) == layer.backend().state_bytes(1'000'000));
  CHECK(sequence.layer(0)->bytes() <= layer.backend().state_bytes(full));
}

TEST_CASE("attention: after a reset the bits are those of an empty state") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState fresh = layer.new_sequence();
  const auto expected = layer.walk(fresh, 0, 0, AttentionLayer::kTokens);
  SequenceState used = layer.new_sequence();
  layer.walk(used, 1, 0, AttentionLayer::kTokens);
  SECTION("of the sequence") { used.reset(); }
  SECTION("of the state alone") { used.layer(0)->reset(); }
  CHECK(used.layer(0)->bytes() <= layer.backend().state_bytes(0));
  CHECK(same_bits(layer.walk(used, 0, 0, AttentionLayer::kTokens), expected));
}

TEST_CASE("attention: after drafts are taken back the bits are those of rows never fed", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  std::vector<std::vector<std::vector<float>>> alone;
  std::vector<SequenceState> sequences;
  for (std::size_t s = 0; s < 2; ++s) {
    SequenceState sequence = layer.new_sequence();
    alone.push_back(layer.walk(sequence, s, 0, AttentionLayer::kTokens));
    sequences.push_back(layer.new_sequence());
  }
  std::mt19937 random(11);
  CAPTURE("seed 11");
  while (std::ranges::any_of(sequences, [](const auto& s) {
    return s.position() < static_cast<std::int64_t>(AttentionLayer::kTokens);
  })) {
    // Two sequences of one step, each with some rows that stay and some drafts, of which those
    // after the first wrong one (a token of the third source) are taken back.
    std::vector<AttentionLayer::Fed> rows;
    std::vector<std::size_t> right_rows(sequences.size());
    std::vector<std::size_t> taken_back(sequences.size());
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto at = static_cast<std::size_t>(sequences[s].position());
      const std::size_t left = AttentionLayer::kTokens - at;
      if (left == 0) continue;
      const std::size_t stay = 1 + random() % std::min<std::size_t>(left, 3);
      const std::size_t drafts = random() % 4 == 0 ? 0 : random() % (left - stay + 1) % 9;
      const std::size_t right = drafts == 0 ? 0 : random() % (drafts + 1);
      for (std::size_t i = 0; i < stay + drafts; ++i) {
        const bool is_right = i < stay + right;
        rows.push_back({&sequences[s], is_right ? s : 2, at + i, i >= stay});
      }
      right_rows[s] = stay + right;
      taken_back[s] = drafts - right;
    }
    const auto outputs = layer.step(rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].source == 2) continue;
      CAPTURE(r, rows[r].token);
      REQUIRE(same_bits(outputs[r], alone[rows[r].source][rows[r].token]));
    }
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      if (right_rows[s] == 0) continue;
      const std::int64_t fed = sequences[s].position();
      sequences[s].rollback(static_cast<std::int64_t>(taken_back[s]));
      REQUIRE(sequences[s].position() == fed - static_cast<std::int64_t>(taken_back[s]));
      REQUIRE(sequences[s].bytes() <= layer.backend().state_bytes(sequences[s].position()));
    }
    // Drafts that were taken back are in no copy either.
    if (random() % 4 == 0) sequences[0] = sequences[0].clone();
  }
}

TEST_CASE("attention: drafts that are not finite leave no trace") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  constexpr std::size_t kBefore = 20;
  SequenceState undisturbed = layer.new_sequence();
  const auto expected = layer.walk(undisturbed, 0, 0, AttentionLayer::kTokens);
  layer.spoil(1, kBefore + 1, std::numeric_limits<float>::infinity());
  layer.spoil(1, kBefore + 2, std::numeric_limits<float>::quiet_NaN());
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, kBefore);
  const auto outputs = layer.step({{&sequence, 0, kBefore},
                                   {&sequence, 1, kBefore + 1, /*is_draft=*/true},
                                   {&sequence, 1, kBefore + 2, /*is_draft=*/true}});
  CHECK(same_bits(outputs[0], expected[kBefore]));
  sequence.rollback(2);
  const auto rest = layer.walk(sequence, 0, kBefore + 1, AttentionLayer::kTokens);
  CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + kBefore + 1,
                   [](const auto& a, const auto& b) { return same_bits(a, b); }));
}

TEST_CASE("attention: outputs are finite for large inputs") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  for (std::size_t t = 0; t < 10; ++t) {
    for (int i = 0; i < 5; ++i) layer.change(0, t);  // 32 times as large
  }
  SequenceState sequence = layer.new_sequence();
  for (const auto& output : layer.walk(sequence, 0, 0, 10)) {
    CHECK(std::all_of(output.begin(), output.end(), [](float x) { return std::isfinite(x); }));
  }
}

}  // namespace
}  // namespace lintel
