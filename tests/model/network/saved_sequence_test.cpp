// SPDX-License-Identifier: Apache-2.0
// Whole sequences, saved and loaded: every kind of attention, weight type and adapter, and bytes
// that a stranger made.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/core/state_bytes.h"
#include "model/lora/adapter.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/model/attention/attention_layer.h"
#include "tests/model/support/whole_models.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using testing::AttentionLayer;
using testing::same_bits;
using testing::TinyModel;
using Bytes = std::vector<std::byte>;

Bytes saved_sequence(const SequenceState& sequence) {
  Bytes bytes;
  bytes.reserve(sequence.saved_bytes());
  StateByteWriter writer(bytes);
  sequence.save(writer);
  return bytes;
}

// True if the bytes are a sequence, all of them.
bool is_loaded(SequenceState& sequence, std::span<const std::byte> bytes,
               std::int64_t most_tokens = INT64_MAX) {
  StateByteReader reader(bytes);
  try {
    sequence.load(reader, most_tokens);
  } catch (const ModelError&) {
    return false;
  }
  return reader.bytes_left() == 0;
}

template <typename T>
void put_at(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// Offsets of a saved sequence's fields.
constexpr std::size_t kPositionAt = 0, kPendingAt = 8, kTailAt = 12, kCountsAt = 16, kLayersAt = 20,
                      kOriginAt = 24, kFixedBytes = 32;

// ---- Every kind of attention, by the table of kinds.

TEST_CASE("attention: a sequence saved at every position continues bit for bit", "[rows]") {
  LINTEL_FOR_EACH_ATTENTION(layer);
  SequenceState sequence = layer.new_sequence();
  SequenceState undisturbed = layer.new_sequence();
  const auto expected = layer.walk(undisturbed, 0, 0, AttentionLayer::kTokens);
  for (std::size_t t = 0; t < AttentionLayer::kTokens; ++t) {
    CAPTURE(t);
    const Bytes bytes = saved_sequence(sequence);
    REQUIRE(bytes.size() == sequence.saved_bytes());
    SequenceState restored = layer.new_sequence();
    REQUIRE(is_loaded(restored, bytes));
    REQUIRE(restored.position() == static_cast<std::int64_t>(t));
    REQUIRE(restored.bytes() == sequence.bytes());
    REQUIRE(saved_sequence(restored) == bytes);
    // A slice whose last rows are drafts that are taken back, then one by one.
    const std::size_t stay = std::min(t % 4 + 1, AttentionLayer::kTokens - t);
    const std::size_t lost = std::min(t % 3, AttentionLayer::kTokens - t - stay);
    std::vector<AttentionLayer::Fed> rows;
    for (std::size_t i = 0; i < stay; ++i) rows.push_back({&restored, 0, t + i});
    for (std::size_t i = 0; i < lost; ++i) rows.push_back({&restored, 1, t + stay + i, true});
    auto outputs = layer.step(rows);
    restored.rollback(static_cast<std::int64_t>(lost));
    outputs.resize(stay);
    const std::size_t end = std::min(t + stay + 3, AttentionLayer::kTokens);
    for (auto& row : layer.walk(restored, 0, t + stay, end)) outputs.push_back(std::move(row));
    REQUIRE(same_bits(outputs, {expected.begin() + static_cast<std::ptrdiff_t>(t),
                                expected.begin() + static_cast<std::ptrdiff_t>(end)}));
    layer.walk(sequence, 0, t, t + 1);
  }
}

// One of the shapes of a sample: all bytes are tried.
std::vector<testing::AttentionCase> small_cases() {
  auto cases = testing::all_attention_cases();
  std::erase_if(cases, [](const auto& which) { return which.d_head != 5; });
  return cases;
}

// Enough for every part of a state to be there, and few where a state is large: positions are in
// pages, whose unused rest is bytes, too.
constexpr std::size_t kTried = 9;

TEST_CASE(
    "attention: a saved sequence that ends anywhere too soon is refused, and leaves nothing") {
  const auto which = GENERATE(from_range(small_cases()));
  CAPTURE(which.spec);
  AttentionLayer layer(which);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, kTried);
  const Bytes bytes = saved_sequence(sequence);
  SequenceState other = layer.new_sequence();
  const Bytes empty = saved_sequence(other);
  const std::size_t empty_bytes = other.bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const bool refused = !is_loaded(other, std::span(bytes).first(size));
    if (refused && other.position() == 0 && other.bytes() == empty_bytes) continue;
    CAPTURE(size);
    REQUIRE(refused);
    REQUIRE(other.bytes() == empty_bytes);
  }
  CHECK(saved_sequence(other) == empty);
  CHECK(is_loaded(other, bytes));
}

TEST_CASE("attention: a saved sequence with any byte changed is refused or harmless") {
  const auto which = GENERATE(from_range(small_cases()));
  CAPTURE(which.spec);
  AttentionLayer layer(which);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, kTried);
  Bytes bytes = saved_sequence(sequence);
  SequenceState other = layer.new_sequence();
  const std::size_t empty_bytes = other.bytes();
  const std::size_t limit = layer.backend().state_bytes(kTried);
  std::size_t taken = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const std::byte change : {std::byte{0xff}, static_cast<std::byte>(1 << (at * 5 % 8))}) {
      bytes[at] ^= change;
      if (!is_loaded(other, bytes)) {
        REQUIRE(other.position() == 0);
        REQUIRE(other.bytes() == empty_bytes);
      } else {
        // Only what it says can differ, never how long it is.
        REQUIRE(other.position() == static_cast<std::int64_t>(kTried));
        REQUIRE(other.bytes() <= limit);
        if (++taken % 16 == 0) layer.walk(other, 0, kTried, kTried + 3);
        other.reset();
      }
      bytes[at] ^= change;
    }
  }
  CHECK(taken > 0);
  CHECK(is_loaded(other, bytes));
}

TEST_CASE("attention: a saved float that is not finite is refused") {
  const auto which = GENERATE(from_range(small_cases()));
  CAPTURE(which.spec);
  AttentionLayer layer(which);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, kTried);
  // Floats that the state computed from tokens are not small whole numbers.
  const Bytes whole = saved_sequence(sequence);
  std::size_t floats = 0;
  SequenceState other = layer.new_sequence();
  for (std::size_t at = kFixedBytes; at + 4 <= whole.size(); at += 4) {
    float value = 0.0f;
    std::memcpy(&value, whole.data() + at, sizeof(value));
    if (std::abs(value) < 1e-4f || !std::isfinite(value)) continue;
    ++floats;
    for (const float awkward : {INFINITY, -INFINITY, NAN}) {
      Bytes bytes = whole;
      put_at(bytes, at, awkward);
      REQUIRE_FALSE(is_loaded(other, bytes));
    }
  }
  CHECK(floats > 0);
}

TEST_CASE("attention: a saved sequence that claims another length takes no memory for it") {
  const auto which = GENERATE(from_range(small_cases()));
  CAPTURE(which.spec);
  AttentionLayer layer(which);
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, kTried);
  const Bytes whole = saved_sequence(sequence);
  SequenceState other = layer.new_sequence();
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{8}, std::int64_t{10}, std::int64_t{64}, std::int64_t{255},
        std::int64_t{257}, std::int64_t{INT32_MAX}, std::int64_t{1} << 40, std::int64_t{1} << 62,
        INT64_MAX, std::int64_t{-1}, INT64_MIN}) {
    CAPTURE(position);
    Bytes bytes = whole;
    put_at(bytes, kPositionAt, position);
    REQUIRE_FALSE(is_loaded(other, bytes));
    other.reset();
    // Fields of the layer agree with the lie: sums and rings are then of that position.
    for (unsigned fields = 1; fields < 16; ++fields) {
      Bytes lie = bytes;
      for (std::size_t i = 0; i < 4; ++i) {
        if ((fields >> i & 1) != 0) put_at(lie, kFixedBytes + 8 * i, position);
      }
      const bool loaded = is_loaded(other, lie);
      REQUIRE(other.bytes() <= layer.backend().state_bytes(std::max<std::int64_t>(position, 0)));
      if (loaded && (position < 200 || position > 256)) layer.walk(other, 0, 0, 3);
      other.reset();
    }
  }
  CHECK_FALSE(is_loaded(other, whole, kTried - 1));
  CHECK(is_loaded(other, whole, kTried));
}

// ---- Whole models.

// Steps tokens and keeps what a session keeps beside them.
struct WholeSequence {
  WholeSequence(const Transformer& of, std::shared_ptr<const Adapter> adapter)
      : model(of), workspace(of.new_workspace(16, 16)), sequence(of.new_sequence(adapter)) {}

  std::vector<float> feed(std::span<const std::int32_t> tokens, std::size_t drafts = 0) {
    std::vector<BatchRow> rows;
    for (std::size_t i = 0; i < tokens.size() + drafts; ++i) {
      const bool is_draft = i >= tokens.size();
      const std::int32_t token = is_draft ? static_cast<std::int32_t>(i) : tokens[i];
      rows.push_back({token, &sequence, /*wants_output=*/true, is_draft});
    }
    const auto outputs = model.step(rows, workspace);
    std::vector<float> kept;
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      kept.insert(kept.end(), outputs.row(r).begin(), outputs.row(r).end());
    }
    sequence.rollback(static_cast<std::int64_t>(drafts));
    return kept;
  }

  const Transformer& model;
  Workspace workspace;
  SequenceState sequence;
};

std::vector<std::string> whole_specs() {
  std::vector<std::string> specs;
  for (const std::string& type : attention_types()) specs.push_back(sample_specs(type).front());
  const std::vector<std::string> kinds = specs;
  for (const std::string& spec : kinds) {
    specs.push_back(spec + (spec.find(':') == spec.npos ? ":" : ",") + "recompute=true");
  }
  return specs;
}

TEST_CASE(
    "a whole sequence continues from its bytes in every weight type, with and without adapter",
    "[rows]") {
  const std::string spec = GENERATE(from_range(whole_specs()));
  CAPTURE(spec);
  ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  config.max_length = 64;
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 1);
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    const auto model = Transformer::load(
        directory.path(), {.weight_type = type, .attention = parse_attention_spec(spec)});
    write_random_adapter(directory.path() / "adapter", model->config(), {.rank = 3});
    const std::shared_ptr<const Adapter> adapters[] = {
        nullptr, Adapter::load(AdapterFiles(directory.path() / "adapter", model->config()))};
    for (const auto& adapter : adapters) {
      CAPTURE(to_string(type), adapter != nullptr);
      const auto tokens = testing::random_tokens(24, 256, 3);
      WholeSequence expected(*model, adapter);
      WholeSequence source(*model, adapter);
      for (std::size_t t = 0; t + 2 < tokens.size(); ++t) {
        CAPTURE(t);
        source.sequence.origin = static_cast<std::int64_t>(100 * t);
        source.sequence.pending = tokens[t];
        source.sequence.counts.add(tokens[t]);
        source.sequence.generated_tail = std::string(t, 'a');
        const Bytes bytes = saved_sequence(source.sequence);
        WholeSequence restored(*model, adapter);
        REQUIRE(is_loaded(restored.sequence, bytes));
        REQUIRE(restored.sequence.next_position() == source.sequence.next_position());
        REQUIRE(restored.sequence.pending == source.sequence.pending);
        REQUIRE(restored.sequence.counts == source.sequence.counts);
        REQUIRE(restored.sequence.generated_tail == source.sequence.generated_tail);
        REQUIRE(restored.sequence.adapter() == adapter);
        REQUIRE(saved_sequence(restored.sequence) == bytes);
        REQUIRE(restored.sequence.bytes() <= model->state_bytes(static_cast<std::int64_t>(t)));
        const std::span one(tokens.data() + t, 1);
        const std::vector<float> first = expected.feed(one);
        REQUIRE(same_bits(source.feed(one), first));
        WholeSequence ahead(*model, adapter);
        ahead.sequence = expected.sequence.clone();
        std::vector<float> all = first;
        const std::vector<float> more = ahead.feed({tokens.data() + t + 1, 2});
        all.insert(all.end(), more.begin(), more.end());
        // Feeds one slice, before drafts that are taken back where there are any.
        const std::size_t drafts = model->recomputes() ? 0 : t % 3;
        REQUIRE(same_bits(restored.feed({tokens.data() + t, 3}, drafts), all));
      }
    }
  }
}

TEST_CASE("invalid fixed fields of a saved sequence are refused by name") {
  using Catch::Contains;
  const bool recomputes = GENERATE(false, true);
  ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  config.max_length = 20;
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path(), config, 1);
  const auto model = Transformer::load(
      directory.path(),
      {.attention = parse_attention_spec(recomputes ? "linear:recompute=true" : "linear")});
  WholeSequence source(*model, nullptr);
  source.feed(testing::random_tokens(10, 256, 1));
  source.sequence.pending = 7;
  source.sequence.generated_tail = "tail";
  const Bytes whole = saved_sequence(source.sequence);
  SequenceState other = model->new_sequence();
  const auto refused = [&](std::size_t at, auto value, const std::string& why) {
    Bytes bytes = whole;
    put_at(bytes, at, value);
    StateByteReader reader(bytes);
    CHECK_THROWS_WITH(other.load(reader), Contains(why));
    CHECK(other.num_tokens() == 0);
    CHECK(other.generated_tail.empty());
    CHECK(other.counts.all() == std::vector<std::uint32_t>(256, 0));
  };
  refused(kPositionAt, std::int64_t{21}, "position 21, expected 0 to 20");
  refused(kPositionAt, std::int64_t{-1}, "position -1");
  if (!recomputes) refused(kPositionAt, std::int64_t{9}, "position 10, expected 9");
  refused(kPendingAt, std::int32_t{256}, "pending token 256, expected -1 to 255");
  refused(kPendingAt, std::int32_t{-2}, "pending token -2");
  refused(kTailAt, std::uint32_t{257}, "tail of bytes 257, expected 0 to 256");
  refused(kTailAt, UINT32_MAX, "tail of bytes 4294967295");
  refused(kOriginAt, std::int64_t{-1}, "origin -1, expected 0 to ");
  refused(kOriginAt, std::int64_t{1} << 62, "origin 4611686018427387904");
  refused(kCountsAt, std::uint32_t{255}, "counts 255, expected 256 to 256");
  refused(kCountsAt, UINT32_MAX, "counts 4294967295");
  refused(kLayersAt, std::uint32_t{3}, "layers 3");
  if (recomputes) {
    refused(whole.size() - 4, std::int32_t{256}, "token 256, expected 0 to 255");
    refused(whole.size() - 4, std::int32_t{-1}, "token -1");
  }
  StateByteReader reader(whole);
  CHECK_THROWS_WITH(other.load(reader, 10), Contains("tokens 11, expected 0 to 10"));
  CHECK(is_loaded(other, whole, 11));
}

}  // namespace
}  // namespace lintel
