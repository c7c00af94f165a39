// What every kind of attention in the table keeps. Names none of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "model/attention/attention.h"
#include "model/network/sequence.h"

namespace lintel {
namespace {

using Backends = std::vector<std::unique_ptr<AttentionBackend>>;

struct Case {
  std::string type;
  int n_heads;
  int d_head;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& type : attention_types()) {
    for (const auto& [n_heads, d_head] : {std::pair{4, 16}, {3, 5}, {1, 33}, {2, 32}}) {
      cases.push_back({type, n_heads, d_head});
    }
  }
  return cases;
}

// One layer of a backend, with tokens for several sequences.
class Layer {
 public:
  static constexpr std::size_t kSequences = 3;
  static constexpr std::size_t kTokens = 70;  // more than a chunk of a small configuration

  explicit Layer(const Case& which)
      : width_(static_cast<std::size_t>(which.n_heads) * which.d_head), inputs_(normal_inputs()) {
    AttentionParams params{
        .config = default_attention(which.type), .n_heads = which.n_heads, .d_head = which.d_head};
    planes_.resize(static_cast<std::size_t>(params.config.rounds) * params.config.bits *
                   which.d_head);
    std::mt19937 generator(9);
    std::normal_distribution<float> normal;
    for (float& plane : planes_) plane = normal(generator);
    params.planes = planes_;
    backends_.push_back(make_attention(params));
  }

  const AttentionBackend& backend() const { return *backends_[0]; }
  SequenceState new_sequence() const { return SequenceState(backends_, 0); }

  struct Fed {
    SequenceState* sequence;
    std::size_t source;  // whose tokens: 0 .. kSequences-1
    std::size_t token;
    bool is_draft = false;
  };

  // One step; a row of outputs for each row fed. q, k and v lie side by side, as in the model.
  std::vector<std::vector<float>> step(const std::vector<Fed>& rows) {
    Matrix qkv(rows.size(), 3 * width_);
    Matrix out(rows.size(), width_);
    std::vector<AttentionState*> states;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto input = inputs_.row(rows[r].source * kTokens + rows[r].token);
      std::copy(input.begin(), input.end(), qkv.row(r).begin());
      states.push_back(rows[r].sequence->layer(0));
      rows[r].sequence->advance();
    }
    expect_drafts(rows);
    const MatrixView<const float> all = qkv.view();
    const MatrixView<const float> keys =
        backend().uses_keys() ? all.cols_from(width_, width_) : MatrixView<const float>();
    backend().step(states, all.cols_from(0, width_), keys, all.cols_from(2 * width_, width_),
                   out.view(), scratch_);
    std::vector<std::vector<float>> outputs;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      outputs.emplace_back(out.row(r).begin(), out.row(r).end());
    }
    return outputs;
  }

  // All tokens of a source at once.
  std::vector<std::vector<float>> full_pass(std::size_t source) {
    const MatrixView<const float> all =
        inputs_.view().rows_from(source * kTokens, std::size_t{kTokens});
    const MatrixView<const float> keys =
        backend().uses_keys() ? all.cols_from(width_, width_) : MatrixView<const float>();
    Matrix out(kTokens, width_);
    backend().full_pass(all.cols_from(0, width_), keys, all.cols_from(2 * width_, width_),
                        out.view(), scratch_);
    std::vector<std::vector<float>> outputs;
    for (std::size_t t = 0; t < kTokens; ++t) {
      outputs.emplace_back(out.row(t).begin(), out.row(t).end());
    }
    return outputs;
  }

  // Tokens first .. last - 1 of a source, one step each.
  std::vector<std::vector<float>> walk(SequenceState& sequence, std::size_t source,
                                       std::size_t first, std::size_t last) {
    std::vector<std::vector<float>> outputs;
    for (std::size_t t = first; t < last; ++t) outputs.push_back(step({{&sequence, source, t}})[0]);
    return outputs;
  }

  // Another token for a source, from here on.
  void change(std::size_t source, std::size_t token) {
    for (float& value : inputs_.row(source * kTokens + token)) value = -2.0f * value + 0.5f;
  }
  void spoil(std::size_t source, std::size_t token, float with) {
    std::ranges::fill(inputs_.row(source * kTokens + token), with);
  }

 private:
  Matrix normal_inputs() const {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal;
    Matrix inputs(kSequences * kTokens, 3 * width_);
    for (float& value : inputs.values()) value = normal(generator);
    return inputs;
  }

  // Memory of its own for every sequence that drafts; the bits in it are nobody's business.
  void expect_drafts(const std::vector<Fed>& rows) {
    draft_memory_.clear();
    for (const Fed& row : rows) {
      const auto of_same = [&](const Fed& other) { return other.sequence == row.sequence; };
      if (&row != &*std::ranges::find_if(rows, of_same)) continue;
      const auto drafts = static_cast<std::size_t>(std::ranges::count_if(
          rows, [&](const Fed& other) { return of_same(other) && other.is_draft; }));
      if (drafts == 0) continue;
      draft_memory_.emplace_back(backend().rewind_floats(drafts), -7.5f);
      row.sequence->layer(0)->expect_drafts(drafts, draft_memory_.back());
    }
  }

  std::size_t width_;
  std::vector<std::vector<float>> draft_memory_;
  Matrix inputs_;  // [sequences * tokens, 3 * H*D]
  std::vector<float> planes_;
  Backends backends_;
  AttentionScratch scratch_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return same_bits(x, y); });
}

#define FOR_EACH_CASE()                                 \
  const Case which = GENERATE(from_range(all_cases())); \
  CAPTURE(which.type, which.n_heads, which.d_head);     \
  Layer layer(which)

TEST_CASE("attention: slices of a prompt give the bits of single steps", "[rows]") {
  FOR_EACH_CASE();
  SequenceState single = layer.new_sequence();
  const auto expected = layer.walk(single, 0, 0, Layer::kTokens);
  for (const std::size_t slice : {2, 7, 32, 70}) {
    CAPTURE(slice);
    SequenceState sequence = layer.new_sequence();
    std::vector<std::vector<float>> outputs;
    for (std::size_t t = 0; t < Layer::kTokens; t += slice) {
      std::vector<Layer::Fed> rows;
      for (std::size_t i = t; i < std::min(t + slice, Layer::kTokens); ++i) {
        rows.push_back({&sequence, 0, i});
      }
      for (auto& output : layer.step(rows)) outputs.push_back(std::move(output));
    }
    CHECK(same_bits(outputs, expected));
  }
}

TEST_CASE("attention: a full pass has the bits of steps, all of them or those of its last row",
          "[rows]") {
  FOR_EACH_CASE();
  SequenceState sequence = layer.new_sequence();
  const auto steps = layer.walk(sequence, 0, 0, Layer::kTokens);
  const auto passed = layer.full_pass(0);
  CHECK(same_bits(passed.back(), steps.back()));
  CHECK(same_bits(passed, steps) == layer.backend().full_pass_equals_steps());
}

TEST_CASE("attention: a sequence has the same bits alone and in a batch", "[rows]") {
  FOR_EACH_CASE();
  std::vector<std::vector<std::vector<float>>> alone;
  std::vector<SequenceState> together;
  for (std::size_t s = 0; s < Layer::kSequences; ++s) {
    SequenceState sequence = layer.new_sequence();
    alone.push_back(layer.walk(sequence, s, 0, Layer::kTokens));
    together.push_back(layer.new_sequence());
  }
  // Sequence s is s tokens late, and its turn in the batch changes.
  for (std::size_t t = 0; t < Layer::kTokens + Layer::kSequences; ++t) {
    std::vector<Layer::Fed> rows;
    for (std::size_t i = 0; i < Layer::kSequences; ++i) {
      const std::size_t s = (i + t) % Layer::kSequences;
      if (t >= s && t - s < Layer::kTokens) rows.push_back({&together[s], s, t - s});
    }
    const auto outputs = layer.step(rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      CAPTURE(t, r);
      REQUIRE(same_bits(outputs[r], alone[rows[r].source][rows[r].token]));
    }
  }
}

TEST_CASE("attention: a clone goes its own way") {
  FOR_EACH_CASE();
  constexpr std::size_t kFork = 37;
  SequenceState original = layer.new_sequence();
  layer.walk(original, 0, 0, kFork);
  SequenceState clone = original.clone();
  SequenceState undisturbed = layer.new_sequence();
  const auto expected = layer.walk(undisturbed, 0, 0, Layer::kTokens);

  const auto other = layer.walk(clone, 1, kFork, Layer::kTokens);
  const auto rest = layer.walk(original, 0, kFork, Layer::kTokens);
  CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + kFork,
                   [](const auto& a, const auto& b) { return same_bits(a, b); }));
  CHECK_FALSE(same_bits(other, rest));

  SequenceState again = layer.new_sequence();
  layer.walk(again, 0, 0, kFork);
  SequenceState late = again.clone();
  CHECK(same_bits(layer.walk(late, 0, kFork, Layer::kTokens), rest));
}

TEST_CASE("attention: what comes later never changes what came before", "[rows]") {
  FOR_EACH_CASE();
  constexpr std::size_t kChanged = 40;
  const auto in_one_step = [&layer] {
    SequenceState sequence = layer.new_sequence();
    std::vector<Layer::Fed> rows;
    for (std::size_t t = 0; t < Layer::kTokens; ++t) rows.push_back({&sequence, 0, t});
    return layer.step(rows);
  };
  const auto before = in_one_step();
  layer.change(0, kChanged);
  const auto after = in_one_step();
  for (std::size_t t = 0; t < Layer::kTokens; ++t) {
    CAPTURE(t);
    if (t < kChanged) CHECK(same_bits(before[t], after[t]));
  }
  CHECK_FALSE(same_bits(before[kChanged], after[kChanged]));
}

TEST_CASE("attention: memory stays within what was announced") {
  FOR_EACH_CASE();
  SequenceState sequence = layer.new_sequence();
  CHECK(sequence.layer(0)->bytes() <= layer.backend().state_bytes(0));
  for (std::size_t t = 0; t < Layer::kTokens; ++t) {
    layer.walk(sequence, 0, t, t + 1);
    const auto tokens = static_cast<std::int64_t>(t) + 1;
    CAPTURE(tokens);
    CHECK(sequence.layer(0)->bytes() <= layer.backend().state_bytes(tokens));
    CHECK(layer.backend().state_bytes(tokens) >= layer.backend().state_bytes(tokens - 1));
    SequenceState clone = sequence.clone();
    CHECK(clone.layer(0)->bytes() <= layer.backend().state_bytes(tokens));
  }
  const bool constant = layer.backend().state_bytes(0) == layer.backend().state_bytes(1'000'000);
  CHECK(layer.backend().constant_state() == constant);
}

TEST_CASE("attention: after a reset the bits are those of an empty state") {
  FOR_EACH_CASE();
  SequenceState fresh = layer.new_sequence();
  const auto expected = layer.walk(fresh, 0, 0, Layer::kTokens);
  SequenceState used = layer.new_sequence();
  layer.walk(used, 1, 0, Layer::kTokens);
  SECTION("of the sequence") { used.reset(); }
  SECTION("of the state alone") { used.layer(0)->reset(); }
  CHECK(used.layer(0)->bytes() <= layer.backend().state_bytes(0));
  CHECK(same_bits(layer.walk(used, 0, 0, Layer::kTokens), expected));
}

TEST_CASE("attention: after a rewind the bits are those of rows never fed", "[rows]") {
  FOR_EACH_CASE();
  std::vector<std::vector<std::vector<float>>> alone;
  std::vector<SequenceState> sequences;
  for (std::size_t s = 0; s < 2; ++s) {
    SequenceState sequence = layer.new_sequence();
    alone.push_back(layer.walk(sequence, s, 0, Layer::kTokens));
    sequences.push_back(layer.new_sequence());
  }
  std::mt19937 random(11);
  CAPTURE("seed 11");
  while (std::ranges::any_of(sequences, [](const auto& s) {
    return s.position() < static_cast<std::int64_t>(Layer::kTokens);
  })) {
    // Two sequences of one step, each with some rows that stay and some drafts, of which those
    // after the first wrong one (a token of the third source) are taken back.
    std::vector<Layer::Fed> rows;
    std::vector<std::size_t> right_rows(sequences.size());
    std::vector<std::size_t> taken_back(sequences.size());
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto at = static_cast<std::size_t>(sequences[s].position());
      const std::size_t left = Layer::kTokens - at;
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
      sequences[s].rewind(static_cast<std::int64_t>(taken_back[s]));
      REQUIRE(sequences[s].position() == fed - static_cast<std::int64_t>(taken_back[s]));
      REQUIRE(sequences[s].bytes() <= layer.backend().state_bytes(sequences[s].position()));
    }
    // What was taken back is in no copy either.
    if (random() % 4 == 0) sequences[0] = sequences[0].clone();
  }
}

TEST_CASE("attention: drafts that are not finite leave nothing behind") {
  FOR_EACH_CASE();
  constexpr std::size_t kBefore = 20;
  SequenceState undisturbed = layer.new_sequence();
  const auto expected = layer.walk(undisturbed, 0, 0, Layer::kTokens);
  layer.spoil(1, kBefore + 1, std::numeric_limits<float>::infinity());
  layer.spoil(1, kBefore + 2, std::numeric_limits<float>::quiet_NaN());
  SequenceState sequence = layer.new_sequence();
  layer.walk(sequence, 0, 0, kBefore);
  const auto outputs = layer.step({{&sequence, 0, kBefore},
                                   {&sequence, 1, kBefore + 1, /*is_draft=*/true},
                                   {&sequence, 1, kBefore + 2, /*is_draft=*/true}});
  CHECK(same_bits(outputs[0], expected[kBefore]));
  sequence.rewind(2);
  const auto rest = layer.walk(sequence, 0, kBefore + 1, Layer::kTokens);
  CHECK(std::equal(rest.begin(), rest.end(), expected.begin() + kBefore + 1,
                   [](const auto& a, const auto& b) { return same_bits(a, b); }));
}

TEST_CASE("attention: outputs are finite for large inputs") {
  FOR_EACH_CASE();
  for (std::size_t t = 0; t < 10; ++t) {
    for (int i = 0; i < 5; ++i) layer.change(0, t);  // 32 times as large
  }
  SequenceState sequence = layer.new_sequence();
  for (const auto& output : layer.walk(sequence, 0, 0, 10)) {
    CHECK(std::all_of(output.begin(), output.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("an attention that is not in the table is refused with what there is") {
  AttentionParams params{.config = {.type = "quadratic"}, .n_heads = 1, .d_head = 4};
  CHECK_THROWS_AS(make_attention(params), ModelError);
  CHECK_THROWS_WITH(make_attention(params), Catch::Contains("quadratic"));
  for (const std::string& type : attention_types()) {
    CHECK_THROWS_WITH(default_attention("quadratic"), Catch::Contains(type));
    CHECK(default_attention(type).type == type);
  }
}

}  // namespace
}  // namespace lintel
