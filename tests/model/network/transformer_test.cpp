// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/fastest_type.h"
#include "model/formats/weights.h"
#include "model/model_files.h"
#include "tests/model/support/reference.h"
#include "tests/model/support/whole_models.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using testing::Model;
using testing::Outputs;
using testing::random_tokens;
using testing::structures;
using testing::TinyModel;
using testing::to_vector;
using testing::walk;

bool bits_agree(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A layer of each kind of attention.
ModelConfig config_of_all_kinds() {
  ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  config.attention.clear();
  for (const std::string& type : attention_types()) {
    config.attention.push_back(sample_attention(type));
  }
  config.n_layers = static_cast<int>(config.attention.size());
  return config;
}

// Every architecture the config can say, in odd sizes.
std::vector<ModelConfig> architectures() {
  std::vector<ModelConfig> configs;
  const auto add = [&](EmbeddingKind embedding, PositionEncoding encoding, int d_model, int n_heads,
                       int d_head, std::int64_t max_length) {
    for (const auto placement : {NormPlacement::kPost, NormPlacement::kPre}) {
      for (const auto activation : {Activation::kRelu, Activation::kGelu}) {
        ModelConfig config = testing::tiny_config(TinyModel::kTokens);
        config.embedding = embedding;
        config.position_encoding = encoding;
        config.d_model = d_model;
        config.n_heads = n_heads;
        config.d_head = d_head;
        config.d_ff = 3 * d_model + 1;
        config.max_length = max_length;
        config.norm_placement = placement;
        config.activation = activation;
        config.final_norm = configs.size() % 3 != 0;
        if (configs.size() % 2 == 0) config.attention[1] = attention_of("linear:eps=0.1");
        configs.push_back(config);
      }
    }
  };
  add(EmbeddingKind::kValueConcatPosition, PositionEncoding::kSinusoidal, 20, 3, 5, 64);
  add(EmbeddingKind::kValueConcatPosition, PositionEncoding::kLearned, 32, 4, 8, 64);
  add(EmbeddingKind::kValueAddPosition, PositionEncoding::kSinusoidal, 18, 1, 33, 0);
  add(EmbeddingKind::kValueAddPosition, PositionEncoding::kLearned, 14, 2, 16, 64);
  add(EmbeddingKind::kValue, PositionEncoding::kNone, 17, 2, 7, 0);
  for (const ModelConfig& config : structures()) configs.push_back(config);
  return configs;
}

TEST_CASE("every architecture agrees with the reference in double precision", "[rows]") {
  for (const ModelConfig& config : architectures()) {
    const Model model(config);
    const auto tokens = random_tokens(40, config.vocab_size, 3);
    const ModelFiles files(model.directory.path());
    const testing::Rows expected =
        testing::model_reference(config, load_weights(files.weights(), config), tokens);
    const Outputs outputs = walk(*model.transformer, tokens);
    double largest = 0.0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::size_t i = 0; i < outputs[t].size(); ++i) {
        const double difference = std::abs(outputs[t][i] - expected[t][i]);
        if (!(difference <= largest)) largest = difference;  // NaN counts
      }
    }
    INFO(to_json(config));
    CHECK(largest <= 2e-5);
  }
}

// Requests in random company: every step takes some of the unfinished sequences in random order,
// with slices of random length.
struct Company {
  const Transformer& model;
  const std::vector<std::vector<std::int32_t>>& prompts;
  std::size_t max_rows;
  std::size_t max_slice;

  std::vector<Outputs> run(unsigned seed) const {
    std::mt19937 generator(seed);
    Workspace workspace = model.new_workspace(max_rows);
    std::vector<SequenceState> sequences;
    std::vector<Outputs> outputs(prompts.size());
    std::vector<std::size_t> order;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      sequences.push_back(model.new_sequence());
      order.push_back(s);
    }
    while (!order.empty()) {
      std::shuffle(order.begin(), order.end(), generator);
      std::vector<BatchRow> rows;
      std::vector<std::size_t> owners;
      for (const std::size_t s : order) {
        if (!rows.empty() && generator() % 4 == 0) continue;  // sits this one out
        const std::size_t done = outputs[s].size();
        const std::size_t slice = std::min(
            {1 + generator() % max_slice, prompts[s].size() - done, max_rows - rows.size()});
        for (std::size_t i = 0; i < slice; ++i) {
          rows.push_back({prompts[s][done + i], &sequences[s], true});
          owners.push_back(s);
        }
      }
      const auto result = model.step(rows, workspace);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        outputs[owners[r]].push_back(to_vector(result.row(r)));
      }
      std::erase_if(order, [&](std::size_t s) { return outputs[s].size() == prompts[s].size(); });
    }
    return outputs;
  }
};

// A configuration as wide as served ones, where wide products choose other blockings.
ModelConfig wide_config() {
  ModelConfig config = testing::tiny_config(TinyModel::kImage);
  config.max_length = 783;
  config.image = {.height = 28, .width = 28, .channels = 1, .start_token = 0};
  config.d_model = 256;
  config.n_heads = 8;
  config.d_head = 32;
  config.d_ff = 1024;
  config.mixtures = 10;
  return config;
}

TEST_CASE("64 requests have the same bits alone, together and in any slices", "[rows]") {
  const ModelConfig config =
      GENERATE(testing::tiny_config(TinyModel::kImage), testing::tiny_config(TinyModel::kBytes),
               wide_config(), config_of_all_kinds(), structures()[1], structures().back());
  const Model model(config);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Outputs> alone;
  for (unsigned s = 0; s < 64; ++s) {
    prompts.push_back(random_tokens(5 + s % 24, config.vocab_size, s));
    alone.push_back(walk(*model.transformer, prompts.back()));
  }
  for (const std::size_t max_slice : {1, 7, 64}) {
    const Company company{*model.transformer, prompts, /*max_rows=*/64, max_slice};
    const std::vector<Outputs> outputs = company.run(/*seed=*/static_cast<unsigned>(max_slice));
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      for (std::size_t t = 0; t < prompts[s].size(); ++t) {
        CAPTURE(config.d_model, max_slice, s, t);
        REQUIRE(bits_agree(outputs[s][t], alone[s][t]));
      }
    }
  }
}

TEST_CASE("threads that share a model have the bits of one thread", "[rows][threads]") {
  const Model model(wide_config());
  std::vector<std::vector<std::int32_t>> prompts;
  for (unsigned s = 0; s < 6; ++s) prompts.push_back(random_tokens(20, 256, s));
  const std::vector<Outputs> expected = Company{*model.transformer, prompts, 16, 4}.run(1);
  std::vector<std::vector<Outputs>> results(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = Company{*model.transformer, prompts, 8 + 8 * i, 4}.run(static_cast<unsigned>(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == expected);
}

TEST_CASE("rows that want no output give none and change nothing", "[rows]") {
  const Model model(testing::tiny_config(TinyModel::kBytes));
  const auto tokens = random_tokens(12, 256, 1);
  const Outputs expected = walk(*model.transformer, tokens);
  Workspace workspace = model.transformer->new_workspace(12);
  SequenceState sequence = model.transformer->new_sequence();
  std::vector<BatchRow> rows;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    rows.push_back({tokens[t], &sequence, t == 4 || t == 11});
  }
  const auto outputs = model.transformer->step(rows, workspace);
  REQUIRE(outputs.rows() == 2);
  CHECK(bits_agree(to_vector(outputs.row(0)), expected[4]));
  CHECK(bits_agree(to_vector(outputs.row(1)), expected[11]));
  CHECK(sequence.position() == 12);

  SequenceState other = model.transformer->new_sequence();
  const BatchRow silent{tokens[0], &other, false};
  CHECK(model.transformer->step({&silent, 1}, workspace).rows() == 0);
}

TEST_CASE("a clone continues as the original, and a reset sequence as a new one") {
  const Model model(testing::tiny_config(TinyModel::kImage));
  const Transformer& transformer = *model.transformer;
  const auto tokens = random_tokens(20, 256, 1);
  const Outputs expected = walk(transformer, tokens);
  Workspace workspace = transformer.new_workspace(20);
  SequenceState sequence = transformer.new_sequence();
  const auto feed = [&](SequenceState& to, std::size_t first, std::size_t last) {
    std::vector<BatchRow> rows;
    for (std::size_t t = first; t < last; ++t) rows.push_back({tokens[t], &to, true});
    return to_vector(transformer.step(rows, workspace).row(rows.size() - 1));
  };
  feed(sequence, 0, 10);
  SequenceState clone = sequence.clone();
  CHECK(bits_agree(feed(sequence, 10, 20), expected[19]));
  CHECK(clone.position() == 10);
  CHECK(bits_agree(feed(clone, 10, 20), expected[19]));
  sequence.reset();
  CHECK(bits_agree(feed(sequence, 0, 15), expected[14]));
}

TEST_CASE("drafts taken back leave no trace, for every kind of attention", "[rows]") {
  const std::string spec =
      GENERATE(as<std::string>(), "linear", "softmax", "lsh:rounds=2,bits=4,chunk_size=5",
               "linear:recompute=true", "softmax:recompute=true",
               "lsh:rounds=2,bits=4,chunk_size=5,recompute=true");
  CAPTURE(spec);
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path(), testing::tiny_config(TinyModel::kBytes), 1);
  const auto transformer =
      Transformer::load(directory.path(), {.attention = parse_attention_spec(spec)});
  const auto tokens = random_tokens(60, 256, 1);
  const auto wrong = random_tokens(60, 256, 2);
  const Outputs expected = walk(*transformer, tokens);
  Workspace workspace = transformer->new_workspace(12);
  SequenceState sequence = transformer->new_sequence();
  SequenceState other = transformer->new_sequence();  // shares the batch, and rewinds nothing
  for (std::size_t t = 0; t < tokens.size();) {
    // The first stays; of the drafts some are right.
    const std::size_t count = std::min<std::size_t>(1 + t % 6, tokens.size() - t);
    const std::size_t right = std::min<std::size_t>(1 + t % 4, count);
    std::vector<BatchRow> rows;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t token = i < right ? tokens[t + i] : wrong[t + i];
      rows.push_back({token, &sequence, /*wants_output=*/true, /*is_draft=*/i > 0});
    }
    rows.push_back({wrong[t], &other, /*wants_output=*/true});
    const auto outputs = transformer->step(rows, workspace);
    for (std::size_t i = 0; i < right; ++i) {
      REQUIRE(bits_agree(to_vector(outputs.row(i)), expected[t + i]));
    }
    sequence.rollback(static_cast<std::int64_t>(count - right));
    t += right;
    REQUIRE(sequence.position() == static_cast<std::int64_t>(t));
    REQUIRE(sequence.bytes() <= transformer->state_bytes(sequence.position()));
  }
}

TEST_CASE("memory of a sequence is the announced size") {
  for (const auto kind : {TinyModel::kImage, TinyModel::kBytes, TinyModel::kTokens}) {
    const ModelConfig config = testing::tiny_config(kind);
    const Model model(config);
    const Transformer& transformer = *model.transformer;
    // 2 layers of S [2, 8, 8] and Z [2, 8]; counts where there are filters.
    const std::size_t counts = config.head == HeadKind::kCategorical ? config.vocab_size : 0;
    CHECK(transformer.state_bytes(0) == (2 * (128 + 16) + counts) * 4);
    CHECK(transformer.state_bytes(1'000'000) == transformer.state_bytes(0));
    CHECK(transformer.constant_state());
    SequenceState sequence = transformer.new_sequence();
    CHECK(sequence.bytes() == transformer.state_bytes(0));
    CHECK(sequence.counts.vocab_size() == counts);
    Workspace workspace = transformer.new_workspace(1);
    const BatchRow row{1, &sequence, false};
    transformer.step({&row, 1}, workspace);
    CHECK(sequence.bytes() <= transformer.state_bytes(1));
  }
}

TEST_CASE("a model describes itself") {
  const ModelConfig config = testing::tiny_config(TinyModel::kImage);
  const Model model(config, /*seed=*/1);
  const Model same(config, /*seed=*/1);
  const Model other(config, /*seed=*/2);
  const Transformer& transformer = *model.transformer;
  CHECK(transformer.fingerprint().size() == 64);
  CHECK(transformer.fingerprint() == same.transformer->fingerprint());
  CHECK(transformer.fingerprint() != other.transformer->fingerprint());
  CHECK(transformer.config().d_model == config.d_model);
  CHECK(to_json(parse_config(transformer.config_json(), "x")) == to_json(config));
  CHECK(transformer.head().num_outputs() == 9);
  CHECK(transformer.weight_type() == WeightType::kF32);
  CHECK(transformer.num_parameters() == count_parameters(config));
  CHECK(transformer.weight_bytes() > 0);
  CHECK(transformer.new_workspace(5).max_rows() == 5);
}

TEST_CASE("a model that is not there is refused") {
  const testing::TemporaryDirectory empty;
  CHECK_THROWS_AS(Transformer::load(empty.path(), {}), ModelError);
}

TEST_CASE("a warm step allocates nothing, nor does a sample", "[rows]") {
  const ModelConfig config =
      GENERATE(testing::tiny_config(TinyModel::kImage), testing::tiny_config(TinyModel::kBytes),
               structures()[1], structures().back());
  const auto type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  if (chosen_kernels() == KernelChoice::kOneDnn) return;  // it allocates in every call
  const Model model(config);
  const auto loaded = Transformer::load(model.directory.path(), {.weight_type = type});
  const Transformer& transformer = *loaded;
  Workspace workspace = transformer.new_workspace(8);
  std::vector<SequenceState> sequences;
  std::vector<BatchRow> rows;
  for (int i = 0; i < 8; ++i) sequences.push_back(transformer.new_sequence());
  for (int i = 0; i < 8; ++i) rows.push_back({i, &sequences[i], true});
  SamplingScratch scratch;
  const SamplingOptions sampled{.top_k = 10, .top_p = 0.9f};
  const SamplingOptions greedy{.temperature = 0.0f};
  std::vector<double> log2_probs(static_cast<std::size_t>(transformer.head().vocab_size()));
  const auto step = [&] {
    const auto outputs = transformer.step(rows, workspace);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto& options = r % 2 == 0 ? sampled : greedy;
      const DrawSource draw{.seed = 1, .position = sequences[r].position()};
      rows[r].token = transformer.head().sample(
          outputs.row(r), options, sequences[r].counts.all(scratch.counts), {}, draw, scratch);
      transformer.head().log2_prob(outputs.row(r), rows[r].token);
      transformer.head().log2_probs(outputs.row(r), log2_probs);
    }
  };
  step();
  const testing::AllocationCount count;
  for (int i = 0; i < 10; ++i) step();
  CHECK(count.so_far() == 0);
}

}  // namespace
}  // namespace lintel
