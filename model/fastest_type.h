// SPDX-License-Identifier: Apache-2.0
// The type of a model's matrices where the operator chose none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model_files.h"
#include "model/transformer.h"

namespace lintel {

// The accuracy that a model loses by the type that its matrices are computed in.

// Bits per token: a model is served in the fastest type that loses no more against f32.
inline constexpr double kMostBitsLost = 0.002;

// Bits that `narrow` loses for each token against `exact`, the same model in f32: the mean
// Kullback-Leibler divergence of what they expect next, along sequences that `narrow` draws.
// Bits/dim of data that the model was made for rise by about as much. A pure function of both;
// takes as long as drawing some hundred tokens. NaN where one of them is not finite. REQUIRES:
// neither recomputes.
//
// Fewer sequences are drawn where it is far from most_bits_lost, which it is compared with.
double kl_divergence_bits(const Transformer& exact, const Transformer& narrow,
                          double most_bits_lost = kMostBitsLost);
// The same along one sequence of these tokens. REQUIRES: at least one, ids of the model, not more
// than its max_length.
double kl_divergence_bits(const Transformer& exact, const Transformer& narrow,
                          std::span<const std::int32_t> tokens);

// ModelSize: how much memory a model will take, known before any of its weights is read.

// Upper bounds, for weights and tables. Workspaces and states are not among them: they belong to
// the caller that steps the model.
struct ModelSize {
  std::size_t resident_bytes = 0;  // as long as the Transformer lives
  std::size_t loading_bytes = 0;   // in addition, until Transformer::load returns

  std::size_t peak_bytes() const {
    std::size_t sum = 0;
    return __builtin_add_overflow(resident_bytes, loading_bytes, &sum) ? SIZE_MAX : sum;
  }
};

// Reads no tensor. Throws ModelError for what Transformer::load would refuse of config.json and the
// weights' header.
ModelSize measure_model(const ModelFiles& files, const Transformer::Options& options);

// The smallest number of weights in a model whose time matrices take; smaller models stay in f32.
inline constexpr std::int64_t kFewestWeights = 200'000;
// Models with more of them are served in the fastest type of faster_types() without a comparison,
// which would take as long as some hundred tokens in f32, unless there is a text to compare on.
inline constexpr std::int64_t kMostComparedWeights = 100'000'000;
// Bounds of a text that types are compared on. Its first tokens are read, up to kMostTextTokens.
inline constexpr std::size_t kFewestTextTokens = 64;
inline constexpr std::size_t kMostTextTokens = 512;
inline constexpr std::size_t kMostTextBytes = std::size_t{64} << 10;  // of a file: more is not read

// The choice of a type where the operator chose none.
struct TypeChoice {
  // A text on which types of a model that reads text are compared, those of a checkpoint in 4 bits,
  // too. Empty: types are compared on sequences that the model draws.
  std::string text;
  double most_bits_lost = kMostBitsLost;
};

// The types faster than f32 with this machine's kernels, the fastest first. Depends on the
// instruction set alone, not on a clock: the same machine chooses the same again.
std::vector<WeightType> faster_types();

struct LoadPlan {
  Transformer::Options options;
  // Types to compare, the fastest first; options.weight_type is served where none loses little
  // enough.
  std::vector<WeightType> candidates;
  double most_bits_lost = kMostBitsLost;
  std::vector<std::int32_t> text;  // to compare on; empty: what the model draws
  std::string reason;              // why nothing is compared, where that is worth saying
  ModelSize size;                  // while it is loaded
};

// weight_type: nothing: the fastest that serves, but f32 of a small model and of one that keeps no
// state, and a GGUF file's quantised tensors as they are. Throws ModelError for what cannot be
// loaded, as far as is seen without reading weights, and for a text of fewer than
// kFewestTextTokens. A large model of which no type loses little enough is served in bf16.
LoadPlan plan_to_load(const ModelFiles& files, std::optional<WeightType> weight_type,
                      const std::optional<AttentionSpec>& attention,
                      std::optional<KvType> kv_type = {}, const TypeChoice& choice = {});

struct LoadedModel {
  std::unique_ptr<const Transformer> transformer;
  // "int8 loses 0.0003 bits a token against f32, of at most 0.002"; empty: nothing was compared.
  std::string reason;
};

// Loads the model in the type of the plan; or in its candidates, one type after the other, until
// one loses little enough against matrices that are read from the files as they are needed, so that
// the model is never there twice. Throws what Transformer::load does.
LoadedModel load_as_planned(const ModelFiles& files, const LoadPlan& plan);

}  // namespace lintel
