// SPDX-License-Identifier: Apache-2.0
// Other attention on the same weights, and recompute mode.
#include "model/config/attention_spec.h"

#include <cstring>
#include <random>
#include <vector>

#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Contains;
using testing::TinyModel;

constexpr LayerDims kDims{.d_model = 24, .n_heads = 3, .d_head = 8};
constexpr const char* kLsh = "lsh:rounds=2,bits=4,chunk_size=8";

TEST_CASE("a spec names a type, keys of config.json, a seed and recompute mode") {
  const AttentionConfig linear = parse_attention_config(R"({"type": "linear"})", "");
  const auto applied = [&](const std::string& spec) {
    return parse_attention_spec(spec).applied_to(linear, kDims);
  };
  CHECK(applied("softmax") == parse_attention_config(R"({"type": "softmax"})", ""));
  CHECK(applied("softmax:scale=0.5").number("scale") == 0.5);
  CHECK(applied("softmax:scale=null").number("scale", 0.25) == 0.25);
  CHECK(applied("linear:eps=1e-3").number("eps") == 1e-3);

  const AttentionSpec spec = parse_attention_spec(
      "lsh:rounds=4,bits=32,chunk_size=29,seed=18446744073709551615,mask_self=false,"
      "combine=logsumexp,recompute=true");
  CHECK(spec.type == "lsh");
  CHECK(spec.seed == 18446744073709551615u);
  CHECK(spec.recompute);
  CHECK(spec.applied_to(linear, kDims) ==
        parse_attention_config(R"({"type": "lsh", "rounds": 4, "bits": 32, "chunk_size": 29,
                                   "mask_self": false, "combine": "logsumexp"})",
                               ""));
  CHECK_FALSE(parse_attention_spec("linear:recompute=false").recompute);
}

TEST_CASE("keys a spec leaves out are the layer's own where the types agree") {
  const std::string keys = "lsh:scale=0.7,rounds=3,bits=5,mask_self=false";
  const AttentionConfig own = attention_of(keys + ",chunk_size=6");
  CHECK(parse_attention_spec("lsh:recompute=true").applied_to(own, kDims) == own);
  const AttentionConfig larger = attention_of(keys + ",chunk_size=9");
  CHECK(parse_attention_spec("lsh:chunk_size=9").applied_to(own, kDims) == larger);
  const AttentionSpec bare = parse_attention_spec("lsh:rounds=1,bits=4");
  CHECK_THROWS_WITH(bare.applied_to(attention_of("linear"), kDims), Contains("chunk_size"));
}

TEST_CASE("a layer's own keys give way to what a spec says, and what it says itself does not") {
  const AttentionConfig favor =
      attention_of("linear:feature_map=favor,features=16,hyperbolic=true,eps=0.01");
  const auto applied = [&](const std::string& spec) {
    return parse_attention_spec(spec).applied_to(favor, kDims);
  };
  CHECK(applied("linear:feature_map=exp") == attention_of("linear:feature_map=exp,eps=0.01"));
  CHECK(applied("linear:features=8") ==
        attention_of("linear:feature_map=favor,features=8,hyperbolic=true,eps=0.01"));
  ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  config.attention.assign(config.attention.size(), favor);
  CHECK_THROWS_WITH(
      with_attention(config, parse_attention_spec("linear:feature_map=exp,features=8")),
      Contains("features") && Contains("exp"));
}

TEST_CASE("a spec that makes no sense is refused by name") {
  const auto refused = [](const std::string& text, const std::string& why) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_attention_spec(text), ModelError);
    CHECK_THROWS_WITH(parse_attention_spec(text), Contains(why));
  };
  refused("", "this build has: linear");
  refused("quadratic", "quadratic");
  refused("softmax:", "key=value");
  refused("softmax:scale", "key=value");
  refused("softmax:=1", "key=value");
  refused("softmax:scale=0.5,", "key=value");
  refused("softmax:scale=-1", "scale");
  refused("softmax:scale=big", "big");
  refused("softmax:scale=[1]", "scale");
  refused("softmax:rounds=1", "rounds");
  refused("softmax:scale=1,scale=2", "twice");
  refused("softmax:recompute=yes", "recompute");
  refused("softmax:seed=1", "seed");
  refused("softmax:type=lsh", "type");
  refused("lsh:rounds=0", "rounds");
  refused("lsh:bits=1.5", "bits");
  refused("lsh:chunk_size=9999999999", "chunk_size");
  refused("lsh:combine=median", "combine");
  refused("lsh:seed=-1", "seed");
  refused("lsh:seed=18446744073709551616", "seed");
  refused("lsh:seed=", "seed");
  refused(std::string("softmax:a\nb=1"), "a\\nb");
}

struct Model {
  explicit Model(const ModelConfig& model_config) : config(model_config) {
    write_random_model(directory.path(), config, /*seed=*/3, /*scale=*/0.5f);
  }
  std::unique_ptr<Transformer> load(const std::string& attention = "") const {
    Transformer::Options options;
    if (!attention.empty()) options.attention = parse_attention_spec(attention);
    return Transformer::load(directory.path(), options);
  }
  ModelConfig config;
  testing::TemporaryDirectory directory;
};

ModelConfig config_with(TinyModel kind, const AttentionConfig& attention) {
  ModelConfig config = testing::tiny_config(kind);
  config.attention.assign(config.attention.size(), attention);
  return config;
}

using Outputs = std::vector<std::vector<float>>;

std::vector<std::int32_t> some_tokens(std::size_t n, const ModelConfig& config) {
  std::mt19937 generator(8);
  std::vector<std::int32_t> tokens(n);
  for (auto& token : tokens) token = static_cast<std::int32_t>(generator() % config.vocab_size);
  return tokens;
}

// Outputs after every token, fed in slices.
Outputs walk(const Transformer& model, std::span<const std::int32_t> tokens, std::size_t slice,
             SequenceState& sequence) {
  Workspace workspace = model.new_workspace(slice);
  Outputs outputs;
  for (std::size_t t = 0; t < tokens.size(); t += slice) {
    std::vector<BatchRow> rows;
    for (std::size_t i = t; i < std::min(t + slice, tokens.size()); ++i) {
      rows.push_back({tokens[i], &sequence, true});
    }
    const MatrixView<const float> out = model.step(rows, workspace);
    for (std::size_t r = 0; r < out.rows(); ++r) {
      outputs.emplace_back(out.row(r).begin(), out.row(r).end());
    }
  }
  return outputs;
}

Outputs walk(const Transformer& model, std::span<const std::int32_t> tokens,
             std::size_t slice = 1) {
  SequenceState sequence = model.new_sequence();
  return walk(model, tokens, slice, sequence);
}

TEST_CASE("recompute mode has the bits of stepping where no chunks move", "[rows]") {
  const std::string type = GENERATE("linear", "softmax");
  const Model model(config_with(TinyModel::kBytes, attention_of(type)));
  const auto tokens = some_tokens(150, model.config);
  const auto recomputing = model.load(type + ":recompute=true");
  const Outputs expected = walk(*model.load(), tokens);
  CHECK(walk(*recomputing, tokens) == expected);
  CHECK(walk(*recomputing, tokens, 7) == expected);
}

TEST_CASE("recompute mode: a batch equals alone, a clone and a reset start where they should",
          "[rows]") {
  const std::string spec = GENERATE("linear:recompute=true", "softmax:recompute=true",
                                    "lsh:rounds=2,bits=4,chunk_size=8,recompute=true");
  const Model model(config_with(TinyModel::kBytes, attention_of("linear")));
  const auto recomputing = model.load(spec);
  const auto tokens = some_tokens(60, model.config);
  const Outputs alone = walk(*recomputing, tokens);

  // Two sequences of different lengths in one step, one of them without wanting all outputs.
  Workspace workspace = recomputing->new_workspace(50);
  SequenceState first = recomputing->new_sequence();
  SequenceState second = recomputing->new_sequence();
  std::vector<BatchRow> rows;
  for (std::size_t t = 0; t < 20; ++t) rows.push_back({tokens[t], &first, t == 19});
  for (std::size_t t = 0; t < 30; ++t) rows.push_back({tokens[t], &second, t % 10 == 9});
  const MatrixView<const float> out = recomputing->step(rows, workspace);
  REQUIRE(out.rows() == 4);
  for (const auto& [row, t] : {std::pair{0, 19}, {1, 9}, {2, 19}, {3, 29}}) {
    CHECK(std::ranges::equal(out.row(row), alone[t]));
  }
  const std::span<const std::int32_t> rest(tokens.begin() + 20, tokens.end());
  SequenceState clone = first.clone();
  CHECK(clone.bytes() == first.bytes());
  const Outputs tail(alone.begin() + 20, alone.end());
  CHECK(walk(*recomputing, rest, 1, first) == tail);
  CHECK(walk(*recomputing, rest, 3, clone) == tail);
  second.reset();
  CHECK(walk(*recomputing, tokens, 5, second) == alone);
}

TEST_CASE("recompute mode remembers tokens and nothing else") {
  const Model model(config_with(TinyModel::kBytes, attention_of("softmax")));
  const auto recomputing = model.load("softmax:recompute=true");
  CHECK_FALSE(recomputing->constant_state());
  const auto cached = model.load();
  CHECK(recomputing->state_bytes(200) < cached->state_bytes(200));
  SequenceState sequence = recomputing->new_sequence();
  Workspace workspace = recomputing->new_workspace(1);
  for (std::int64_t t = 0; t < 250; ++t) {
    const BatchRow row{1, &sequence, false};
    recomputing->step({&row, 1}, workspace);
    REQUIRE(sequence.bytes() == recomputing->state_bytes(t + 1));
  }
  const std::size_t counts = 256 * sizeof(std::uint32_t);
  CHECK(recomputing->state_bytes(0) == counts);
  // A million tokens of four bytes, in pages, and the pages' addresses.
  CHECK(recomputing->state_bytes(1'000'000) < 4'100'000);
  REQUIRE(recomputing->warnings().size() == 1);
  CHECK_THAT(recomputing->warnings()[0], Contains("not for production"));
}

TEST_CASE("LSH keeps its planes when only the mode changes, and says that outputs differ") {
  const AttentionConfig lsh = attention_of(kLsh);
  const Model model(config_with(TinyModel::kBytes, lsh));
  const auto tokens = some_tokens(60, model.config);
  const auto cached = model.load();
  CHECK(cached->warnings().empty());
  const auto recomputing = model.load("lsh:recompute=true");
  REQUIRE(recomputing->warnings().size() == 1);
  CHECK_THAT(recomputing->warnings()[0], Contains("outputs differ"));
  const Outputs streaming = walk(*cached, tokens);
  const Outputs prefix = walk(*recomputing, tokens);
  // One chunk in the beginning: the same. Later chunks move under earlier positions.
  for (std::size_t t = 0; t < 8; ++t) {
    for (std::size_t i = 0; i < streaming[t].size(); ++i) {
      CHECK(std::abs(streaming[t][i] - prefix[t][i]) < 1e-4);
    }
  }
  CHECK(streaming.back() != prefix.back());

  const auto reseeded = model.load("lsh:seed=5");
  REQUIRE(reseeded->warnings().size() == 1);
  CHECK(walk(*reseeded, tokens) != streaming);
}

TEST_CASE("the same weights run with another attention, and the model says so") {
  const Model model(config_with(TinyModel::kImage, attention_of("linear")));
  const auto tokens = some_tokens(29, model.config);
  const auto own = model.load();
  CHECK(own->warnings().empty());
  CHECK(model.load("linear")->warnings().empty());
  CHECK(walk(*model.load("linear"), tokens) == walk(*own, tokens));

  const auto softmax = model.load("softmax");
  CHECK(softmax->config().attention[1] == attention_of("softmax"));
  CHECK_FALSE(softmax->constant_state());
  REQUIRE(softmax->warnings().size() == 1);
  CHECK_THAT(softmax->warnings()[0], Contains("not trained") && Contains("softmax"));
  CHECK(walk(*softmax, tokens) != walk(*own, tokens));
  CHECK(model.load("linear:eps=0.1")->warnings().size() == 1);
  CHECK(model.load("softmax:recompute=true")->warnings().size() == 2);

  // Planes are drawn from the seed, 0 unless given.
  const Outputs unseeded = walk(*model.load(kLsh), tokens);
  CHECK(walk(*model.load(std::string(kLsh) + ",seed=0"), tokens) == unseeded);
  CHECK(walk(*model.load(std::string(kLsh) + ",seed=1"), tokens) != unseeded);
  CHECK_THROWS_WITH(model.load("lsh"), Contains("rounds"));
  CHECK(model.load(kLsh)->num_parameters() == own->num_parameters());
  CHECK(model.load(kLsh)->config_json() == own->config_json());
}

}  // namespace
}  // namespace lintel
