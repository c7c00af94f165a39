// SPDX-License-Identifier: Apache-2.0
// Sequences with LoRA adapters: against the vectors, the formula, and each other.
#include "model/lora/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <random>
#include <ranges>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/model/support/reference.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using testing::TinyModel;
using Outputs = std::vector<std::vector<float>>;  // [tokens][num_outputs]
using SharedAdapter = std::shared_ptr<const Adapter>;

// Tokens and whose adapter they go through.
struct AdaptedPrompt {
  SharedAdapter adapter;  // null: none
  std::vector<std::int32_t> tokens;
};

std::vector<std::int32_t> drawn_tokens(std::size_t count, int vocab_size, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(generator() % static_cast<unsigned>(vocab_size));
  }
  return tokens;
}

// One token a step, from a new sequence.
Outputs alone(const Transformer& model, const AdaptedPrompt& prompt) {
  Workspace workspace = model.new_workspace(1);
  SequenceState sequence = model.new_sequence(prompt.adapter);
  Outputs outputs;
  for (const std::int32_t token : prompt.tokens) {
    const BatchRow row{token, &sequence, /*wants_output=*/true};
    const auto output = model.step({&row, 1}, workspace).row(0);
    outputs.emplace_back(output.begin(), output.end());
  }
  return outputs;
}

// All prompts in the same steps, each in slices of a length that chance says; outputs that are not
// asked for are empty.
std::vector<Outputs> together(const Transformer& model, std::span<const AdaptedPrompt> prompts,
                              unsigned seed) {
  std::mt19937 generator(seed);
  constexpr std::size_t kMaxSlice = 5;
  Workspace workspace = model.new_workspace(prompts.size() * kMaxSlice);
  std::vector<SequenceState> sequences;
  for (const AdaptedPrompt& p : prompts) sequences.push_back(model.new_sequence(p.adapter));
  std::vector<Outputs> outputs(prompts.size());
  for (bool unfinished = true; unfinished;) {
    std::vector<BatchRow> rows;
    std::vector<std::size_t> owners;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      const std::size_t done = outputs[s].size();
      const std::size_t slice =
          std::min<std::size_t>(generator() % (kMaxSlice + 1), prompts[s].tokens.size() - done);
      for (std::size_t i = 0; i < slice; ++i) {
        rows.push_back({prompts[s].tokens[done + i], &sequences[s], generator() % 3 != 0});
        owners.push_back(s);
      }
    }
    if (rows.empty()) continue;
    const auto result = model.step(rows, workspace);
    std::size_t wanted = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::vector<float>& output = outputs[owners[r]].emplace_back();
      if (!rows[r].wants_output) continue;
      const auto row = result.row(wanted++);
      output.assign(row.begin(), row.end());
    }
    unfinished = std::ranges::any_of(std::views::iota(std::size_t{0}, prompts.size()), [&](auto s) {
      return outputs[s].size() < prompts[s].tokens.size();
    });
  }
  return outputs;
}

// Compares the outputs that both have.
bool have_same_bits(const Outputs& a, const Outputs& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    if (x.empty() || y.empty()) return true;
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

double largest_difference(const Outputs& a, const testing::Rows& b) {
  double largest = 0.0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      const double difference = std::abs(a[t][i] - b[t][i]);
      if (!(difference <= largest)) largest = difference;  // NaN counts
    }
  }
  return largest;
}

// A model with random weights, and adapters beside it.
struct AdaptedModel {
  explicit AdaptedModel(const ModelConfig& config) {
    write_random_model(directory.path(), config, /*seed=*/1);
  }
  std::unique_ptr<Transformer> load(WeightType type, const std::string& attention = "") const {
    Transformer::Options options{.weight_type = type};
    if (!attention.empty()) options.attention = parse_attention_spec(attention);
    return Transformer::load(directory.path(), options);
  }
  SharedAdapter adapter(const ModelConfig& config, const RandomAdapter& options) {
    const auto path = directory.path() / "adapters" / std::to_string(count_++);
    write_random_adapter(path, config, options);
    return Adapter::load(AdapterFiles(path, config));
  }

  testing::TemporaryDirectory directory;

 private:
  int count_ = 0;
};

// Post and pre norms, both activations, shared layers, two streams, values with and without a
// position beside them.
std::vector<ModelConfig> adaptable_configs() {
  ModelConfig reversible = testing::tiny_config(TinyModel::kBytes);
  reversible.n_layers = 4;
  reversible.attention.assign(4, attention_of("linear"));
  reversible.layer_weights = {0, 1, 0, 1};
  reversible.residual = Residual::kReversibleConcat;
  ModelConfig universal = testing::tiny_config(TinyModel::kTokens);
  universal.embedding = EmbeddingKind::kValueAddPosition;
  universal.position_encoding = PositionEncoding::kSinusoidal;
  universal.layer_weights = {0, 0};
  universal.position_injection = PositionInjection::kEveryLayer;
  universal.step_embedding = true;
  return {testing::tiny_config(TinyModel::kImage), testing::tiny_config(TinyModel::kBytes),
          testing::tiny_config(TinyModel::kTokens), reversible, universal};
}

// W += scaling B A, of the matrix [out, in] or an embedding [V, width].
void merge(const AdapterFiles& files, ModelWeights& weights, const ModelConfig& config) {
  std::map<std::string, Matrix*> by_name;
  for_each_tensor(config, weights,
                  [&](const TensorSpec& spec, Matrix& m) { by_name[spec.name] = &m; });
  for (const AdaptedModule& adapted : files.modules()) {
    const std::vector<float> a = files.tensors().read_f32(adapted.a->name);
    const std::vector<float> b = files.tensors().read_f32(adapted.b->name);
    Matrix& weight = *by_name.at(adapted.module.name + ".weight");
    for (std::size_t o = 0; o < adapted.module.out; ++o) {
      for (std::size_t i = 0; i < adapted.module.in; ++i) {
        double sum = 0.0;
        for (std::size_t j = 0; j < adapted.rank; ++j) {
          sum += double{b[o * adapted.rank + j]} * a[j * adapted.module.in + i];
        }
        float& w = adapted.module.is_embedding ? weight.row(i)[o] : weight.row(o)[i];
        w = static_cast<float>(w + adapted.scaling * sum);
      }
    }
  }
}

}  // namespace

TEST_CASE("adapters give the outputs of their vectors, in one batch with each other and the base",
          "[rows]") {
  const std::filesystem::path directory = LINTEL_TEST_DATA "/golden/zoo/lora";
  const WeightType type = GENERATE(from_range(kWeightTypes));
  const auto model = Transformer::load(directory, {.weight_type = type});
  std::vector<AdaptedPrompt> prompts;
  std::vector<testing::Rows> expected;
  std::vector<std::string> names;
  const auto add = [&](const std::filesystem::path& path, const SharedAdapter& adapter) {
    const SafetensorsFile golden(path / "golden.safetensors");
    const auto tokens = golden.read_i32("tokens");
    const auto outputs = golden.read_f32("outputs");
    const auto length = static_cast<std::size_t>(golden.tensor("tokens").shape[1]);
    const std::size_t width = model->head().num_outputs();
    for (std::size_t first = 0; first < tokens.size(); first += length) {
      prompts.push_back({adapter, {tokens.begin() + first, tokens.begin() + first + length}});
      testing::Rows& rows = expected.emplace_back();
      for (std::size_t t = first; t < first + length; ++t) {
        rows.emplace_back(outputs.begin() + t * width, outputs.begin() + (t + 1) * width);
      }
      names.push_back(path.filename());
    }
  };
  add(directory, nullptr);
  for (const auto& entry : std::filesystem::directory_iterator(directory / "adapters")) {
    add(entry.path(), Adapter::load(AdapterFiles(entry.path(), model->config())));
  }
  REQUIRE(prompts.size() == 6);
  const std::vector<Outputs> mixed = together(*model, prompts, /*seed=*/1);
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    CAPTURE(names[s], to_string(type));
    const Outputs steps = alone(*model, prompts[s]);
    CHECK(have_same_bits(mixed[s], steps));
    if (type != WeightType::kF32) continue;
    const double largest = largest_difference(steps, expected[s]);
    std::cout << "zoo/lora " << names[s] << ": largest difference " << largest << "\n";
    CHECK(largest <= 5e-5);
    CHECK(largest_difference(steps, expected[(s + 2) % expected.size()]) > 0.01);
  }
}

TEST_CASE("adapters of every module agree with merged weights in double precision", "[rows]") {
  for (const ModelConfig& config : adaptable_configs()) {
    AdaptedModel model(config);
    const auto transformer = model.load(WeightType::kF32);
    const SharedAdapter adapter = model.adapter(config, {.rank = 3});
    const AdaptedPrompt prompt{adapter, drawn_tokens(29, config.vocab_size, 3)};
    const ModelFiles files(model.directory.path());
    ModelWeights weights = load_weights(files.weights(), config);
    const Outputs outputs = alone(*transformer, prompt);
    INFO(to_json(config));
    CHECK(largest_difference(outputs, testing::model_reference(config, weights, prompt.tokens)) >
          0.01);
    merge(AdapterFiles(model.directory.path() / "adapters/0", config), weights, config);
    CHECK(largest_difference(outputs, testing::model_reference(config, weights, prompt.tokens)) <=
          5e-5);
  }
}

TEST_CASE("each module is adapted by itself", "[rows]") {
  const ModelConfig config = adaptable_configs()[3];
  AdaptedModel model(config);
  const auto transformer = model.load(WeightType::kF32);
  const ModelFiles files(model.directory.path());
  const auto tokens = drawn_tokens(20, config.vocab_size, 3);
  for (const AdaptableModule& module : adaptable_modules(config)) {
    CAPTURE(module.name);
    const auto path = model.directory.path() / module.name;
    write_random_adapter(
        path, config, {.rank = 9, .adapts = [&](const auto& name) { return name == module.name; }});
    const AdapterFiles opened(path, config);
    REQUIRE(opened.modules().size() == 1);
    ModelWeights weights = load_weights(files.weights(), config);
    merge(opened, weights, config);
    const testing::Rows expected = testing::model_reference(config, weights, tokens);
    CHECK(largest_difference(alone(*transformer, {Adapter::load(opened), tokens}), expected) <=
          5e-5);
    CHECK(largest_difference(alone(*transformer, {nullptr, tokens}), expected) > 1e-3);
  }
}

TEST_CASE("an adapter whose B is zero has the bits of the base", "[rows]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  for (const ModelConfig& config : adaptable_configs()) {
    AdaptedModel model(config);
    const auto transformer = model.load(type);
    const auto tokens = drawn_tokens(20, config.vocab_size, 5);
    const SharedAdapter adapter = model.adapter(config, {.rank = 8, .b_is_zero = true});
    INFO(to_json(config));
    CHECK(have_same_bits(alone(*transformer, {adapter, tokens}),
                         alone(*transformer, {nullptr, tokens})));
  }
}

TEST_CASE("64 sequences with eight adapters and none have the same bits alone and together",
          "[rows]") {
  const WeightType type = GENERATE(from_range(kWeightTypes));
  for (const ModelConfig& config : adaptable_configs()) {
    AdaptedModel model(config);
    const auto transformer = model.load(type);
    std::vector<SharedAdapter> adapters = {nullptr};
    for (int i = 0; i < 8; ++i) {
      const bool attention_alone = i % 3 == 0;
      adapters.push_back(model.adapter(
          config, {.rank = 1 + 3 * i,
                   .seed = static_cast<std::uint64_t>(i),
                   .adapts = [=](const std::string& name) {
                     return !attention_alone || name.find("attention") != std::string::npos;
                   }}));
    }
    std::vector<AdaptedPrompt> prompts;
    for (unsigned s = 0; s < 64; ++s) {
      prompts.push_back(
          {adapters[s * 5 % adapters.size()], drawn_tokens(5 + s % 9, config.vocab_size, s)});
    }
    const std::vector<Outputs> mixed = together(*transformer, prompts, /*seed=*/7);
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      CAPTURE(s, to_string(type), to_json(config));
      REQUIRE(have_same_bits(mixed[s], alone(*transformer, prompts[s])));
    }
  }
}

TEST_CASE("a projection that is stored and never read may be adapted, and changes nothing",
          "[rows]") {
  ModelConfig config = testing::tiny_config(TinyModel::kBytes);
  config.attention.assign(2, attention_of("lsh:rounds=2,bits=4,chunk_size=8"));
  AdaptedModel model(config);
  const auto transformer = model.load(WeightType::kF32);
  const auto tokens = drawn_tokens(30, config.vocab_size, 5);
  const auto adapted = [&](const std::string& projection) {
    const SharedAdapter adapter = model.adapter(
        config, {.adapts = [&](const std::string& name) { return name.ends_with(projection); }});
    CHECK(adapter->modules().size() == 2);
    return alone(*transformer, {adapter, tokens});
  };
  const Outputs base = alone(*transformer, {nullptr, tokens});
  CHECK(have_same_bits(adapted("key_projection"), base));
  CHECK_FALSE(have_same_bits(adapted("query_projection"), base));
  CHECK_FALSE(have_same_bits(adapted("value_projection"), base));
}

TEST_CASE("recompute mode has an adapter's bits of steps") {
  for (const ModelConfig& config : adaptable_configs()) {
    AdaptedModel model(config);
    const auto again = model.load(WeightType::kF32, "linear:recompute=true");
    const auto steps = model.load(WeightType::kF32);
    std::vector<AdaptedPrompt> prompts;
    for (unsigned s = 0; s < 3; ++s) {
      const SharedAdapter adapter = s == 1 ? nullptr : model.adapter(config, {.seed = s});
      prompts.push_back({adapter, drawn_tokens(12, config.vocab_size, s)});
    }
    const std::vector<Outputs> mixed = together(*again, prompts, /*seed=*/2);
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      CAPTURE(s, to_json(config));
      CHECK(have_same_bits(mixed[s], alone(*steps, prompts[s])));
    }
  }
}

TEST_CASE("a sequence keeps its adapter, and so do its clones", "[rows]") {
  const ModelConfig config = testing::tiny_config(TinyModel::kTokens);
  AdaptedModel model(config);
  const auto transformer = model.load(WeightType::kF32);
  const SharedAdapter adapter = model.adapter(config, {});
  const AdaptedPrompt prompt{adapter, drawn_tokens(10, config.vocab_size, 1)};
  const Outputs expected = alone(*transformer, prompt);
  Workspace workspace = transformer->new_workspace(1);
  SequenceState sequence = transformer->new_sequence(adapter);
  CHECK(sequence.adapter() == adapter);
  CHECK(transformer->new_sequence().adapter() == nullptr);
  const auto feed = [&](SequenceState& to, std::int32_t token) {
    const BatchRow row{token, &to, /*wants_output=*/true};
    const auto output = transformer->step({&row, 1}, workspace).row(0);
    return std::vector<float>(output.begin(), output.end());
  };
  for (std::size_t t = 0; t < 5; ++t) feed(sequence, prompt.tokens[t]);
  SequenceState clone = sequence.clone();
  CHECK(clone.adapter() == adapter);
  sequence.reset();
  CHECK(sequence.adapter() == adapter);
  for (std::size_t t = 5; t < 10; ++t) {
    CHECK(have_same_bits({feed(clone, prompt.tokens[t])}, {expected[t]}));
  }
  SequenceState other = transformer->new_sequence();
  other = std::move(clone);
  CHECK(other.adapter() == adapter);
}

TEST_CASE("a warm step with adapters allocates nothing", "[rows]") {
  const auto type = GENERATE(from_range(kWeightTypes));
  if (chosen_kernels() == KernelChoice::kOneDnn) return;  // it allocates in every call
  const ModelConfig config = adaptable_configs()[3];
  AdaptedModel model(config);
  const auto transformer = model.load(type);
  Workspace workspace = transformer->new_workspace(9);
  std::vector<SequenceState> sequences;
  std::vector<BatchRow> rows;
  std::vector<SharedAdapter> adapters = {nullptr};
  for (int i = 0; i < 4; ++i) adapters.push_back(model.adapter(config, {.rank = 1 + 20 * i}));
  for (std::size_t i = 0; i < 9; ++i) {
    sequences.push_back(transformer->new_sequence(adapters[i % adapters.size()]));
  }
  for (std::size_t i = 0; i < 9; ++i) rows.push_back({3, &sequences[i], i % 2 == 0});
  transformer->step(rows, workspace);
  const testing::AllocationCount count;
  for (int i = 0; i < 10; ++i) transformer->step(rows, workspace);
  CHECK(count.so_far() == 0);
}

}  // namespace lintel
