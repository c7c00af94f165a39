// SPDX-License-Identifier: Apache-2.0
// Models in files, and what they make of tokens, as tests of whole models need them.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

using Outputs = std::vector<std::vector<float>>;  // [tokens][num_outputs]

struct Model {
  explicit Model(const ModelConfig& config, std::uint64_t seed = 1) {
    write_random_model(directory.path(), config, seed);
    transformer = Transformer::load(directory.path(), {});
  }
  TemporaryDirectory directory;
  std::unique_ptr<Transformer> transformer;
};

inline std::vector<std::int32_t> random_tokens(std::size_t count, int vocab_size, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<std::int32_t> uniform(0, vocab_size - 1);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = uniform(generator);
  return tokens;
}

inline std::vector<float> to_vector(std::span<const float> row) { return {row.begin(), row.end()}; }

// One token a step, from a new sequence.
inline Outputs walk(const Transformer& model, std::span<const std::int32_t> tokens) {
  Workspace workspace = model.new_workspace(1);
  SequenceState sequence = model.new_sequence();
  Outputs outputs;
  for (const std::int32_t token : tokens) {
    const BatchRow row{token, &sequence, /*wants_output=*/true};
    outputs.push_back(to_vector(model.step({&row, 1}, workspace).row(0)));
  }
  return outputs;
}

// Models whose layers are more than a stack: shared, reading their position and step, reversible.
inline std::vector<ModelConfig> structures() {
  ModelConfig shared = tiny_config(TinyModel::kTokens);
  shared.d_model = 18;
  shared.n_layers = 5;
  shared.attention.assign(5, attention_of("linear"));
  shared.layer_weights = {0, 1, 0, 2, 1};
  ModelConfig universal = shared;
  universal.embedding = EmbeddingKind::kValueAddPosition;
  universal.position_encoding = PositionEncoding::kSinusoidal;
  universal.layer_weights = {0, 0, 0, 0, 0};
  universal.position_injection = PositionInjection::kEveryLayer;
  universal.step_embedding = true;
  std::vector<ModelConfig> configs = {shared, universal};
  for (const Residual residual : {Residual::kReversibleMean, Residual::kReversibleConcat}) {
    ModelConfig reversible = universal;
    reversible.layer_weights = {};
    reversible.norm_placement = NormPlacement::kPre;
    reversible.residual = residual;
    configs.push_back(reversible);
    reversible.final_norm = false;
    reversible.layer_weights = shared.layer_weights;
    configs.push_back(reversible);
  }
  return configs;
}

}  // namespace lintel::testing
