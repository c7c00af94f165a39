// SPDX-License-Identifier: Apache-2.0
// What every kind of attention says of its state: saved, and loaded again. Names none of them.
#include <vector>

#include "tests/model/attention/attention_layer.h"
#include "tests/model/attention/state_bytes.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::AttentionLayer;
using testing::same_bits;
using testing::StateBytes;

StateBytes saved(SequenceState& sequence, std::int64_t since) {
  StateBytes bytes;
  sequence.layer(0)->save(since, bytes);
  return bytes;
}

TEST_CASE("attention: a state restored at any token continues bit for bit", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  const auto expected = layer.walk(sequence, 0, 0, AttentionLayer::kTokens);
  sequence.reset();
  for (std::size_t t = 0; t < AttentionLayer::kTokens; ++t) {
    CAPTURE(t);
    StateBytes bytes = saved(sequence, 0);
    SequenceState restored = layer.new_sequence();
    restored.layer(0)->load(static_cast<std::int64_t>(t), bytes);
    CHECK(restored.layer(0)->bytes() == sequence.layer(0)->bytes());
    CHECK(saved(restored, 0).bytes == saved(sequence, 0).bytes);
    const std::size_t end = std::min(t + 5, AttentionLayer::kTokens);
    const auto rest = layer.walk(restored, 0, t, end);
    REQUIRE(same_bits(rest, {expected.begin() + static_cast<std::ptrdiff_t>(t),
                             expected.begin() + static_cast<std::ptrdiff_t>(end)}));
    layer.walk(sequence, 0, t, t + 1);
  }
}

TEST_CASE("attention: what came since is enough where the rest is there", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  SequenceState follower = layer.new_sequence();
  std::size_t fed = 0;
  for (const std::size_t more : {1, 7, 0, 30, 25}) {
    CAPTURE(fed, more);
    layer.walk(sequence, 0, fed, fed + more);
    StateBytes bytes = saved(sequence, static_cast<std::int64_t>(fed));
    fed += more;
    follower.layer(0)->load(static_cast<std::int64_t>(fed), bytes);
    REQUIRE(saved(follower, 0).bytes == saved(sequence, 0).bytes);
  }
  CHECK(same_bits(layer.walk(follower, 0, fed, AttentionLayer::kTokens),
                  layer.walk(sequence, 0, fed, AttentionLayer::kTokens)));
}

TEST_CASE("attention: a restored state takes drafts back, and may have had some taken back") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState undisturbed = layer.new_sequence();
  const auto expected = layer.walk(undisturbed, 0, 0, AttentionLayer::kTokens);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, 20);
  layer.step({{&sequence, 0, 20}, {&sequence, 1, 21, true}, {&sequence, 1, 22, true}});
  sequence.rollback(2);
  StateBytes bytes = saved(sequence, 0);
  SequenceState restored = layer.new_sequence();
  restored.layer(0)->load(21, bytes);
  for (int i = 0; i < 21; ++i) restored.advance();
  layer.step({{&restored, 0, 21}, {&restored, 1, 22, true}, {&restored, 1, 23, true}});
  restored.rollback(2);
  const auto rest = layer.walk(restored, 0, 22, AttentionLayer::kTokens);
  CHECK(same_bits(rest, {expected.begin() + 22, expected.end()}));
}

TEST_CASE("attention: a state saved after drafts were rolled back has nothing of them") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  SequenceState undisturbed = layer.new_sequence();
  for (std::size_t t = 0; t + 9 < AttentionLayer::kTokens; ++t) {
    CAPTURE(t);
    std::vector<AttentionLayer::Fed> rows = {{&sequence, 0, t}};
    for (std::size_t i = 1; i <= 1 + t % 9; ++i) rows.push_back({&sequence, 1, t + i, true});
    layer.step(rows);
    sequence.rollback(static_cast<std::int64_t>(rows.size()) - 1);
    layer.walk(undisturbed, 0, t, t + 1);
    REQUIRE(saved(sequence, 0).bytes == saved(undisturbed, 0).bytes);
  }
}

TEST_CASE("attention: what stays of drafts is in a sequence that settles, and nowhere else") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  SequenceState undisturbed = layer.new_sequence();
  std::vector<StateBytes> expected;
  for (std::size_t t = 0; t < AttentionLayer::kTokens; ++t) {
    expected.push_back(saved(undisturbed, 0));
    layer.walk(undisturbed, 0, t, t + 1);
  }
  for (std::size_t t = 0; t + 9 < AttentionLayer::kTokens;) {
    CAPTURE(t);
    const std::size_t right = t % 4;
    std::vector<AttentionLayer::Fed> rows = {{&sequence, 0, t}};
    for (std::size_t i = 1; i <= right; ++i) rows.push_back({&sequence, 0, t + i, true});
    for (std::size_t i = 1; i <= 1 + t % 3; ++i) rows.push_back({&sequence, 1, t + i, true});
    layer.step(rows);
    sequence.rollback(static_cast<std::int64_t>(rows.size() - 1 - right));
    t += 1 + right;
    if (t % 2 == 0) continue;  // then they go in with the next rows
    sequence.settle();
    REQUIRE(saved(sequence, 0).bytes == expected[t].bytes);
    REQUIRE(!layer.remembers_drafts());
  }
}

TEST_CASE("attention: a saved state that ends too soon is refused") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, 10);
  const StateBytes whole = saved(sequence, 0);
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, whole.bytes.size() - 1}) {
    StateBytes cut = whole;
    cut.bytes.resize(size);
    SequenceState other = layer.new_sequence();
    CHECK_THROWS_AS(other.layer(0)->load(10, cut), ModelError);
    other.layer(0)->reset();
    CHECK(saved(other, 0).bytes == [&] {
      SequenceState fresh = layer.new_sequence();
      return saved(fresh, 0).bytes;
    }());
  }
}

TEST_CASE("attention: an increment after other tokens than the state's is refused") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, 10);
  StateBytes bytes = saved(sequence, 0);
  SequenceState longer = layer.new_sequence();
  layer.walk(longer, 1, 0, 11);
  CHECK_THROWS_AS(longer.layer(0)->load(10, bytes), ModelError);
}

}  // namespace
}  // namespace lintel
