// SPDX-License-Identifier: Apache-2.0
// The type of a model's matrices where the operator chose none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model_files.h"
#include "model/transformer.h"

namespace lintel {

// What a model loses by the type that its matrices are computed in.

// Bits that `narrow` loses for each token against `exact`, the same model in f32: the mean
// Kullback-Leibler divergence of what they expect next, along sequences that `narrow` draws.
// Bits/dim of data that the model was made for rise by about as much. A pure function of both;
// takes as long as drawing some hundred tokens. NaN where one of them is not finite. REQUIRES:
// neither recomputes.
double kl_divergence_bits(const Transformer& exact, const Transformer& narrow);

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

// Of bits per token: a model is served in the fastest type that loses no more against f32.
inline constexpr double kMostBitsLost = 0.002;
// Of weights in a model whose time matrices take; smaller ones stay in f32.
inline constexpr std::int64_t kFewestWeights = 200'000;
// Models with more of them are served in the fastest type without a comparison, which would take
// as long as some hundred tokens in f32.
inline constexpr std::int64_t kMostComparedWeights = 100'000'000;

// What is faster than f32 with this machine's kernels, the fastest first. It depends on the
// instruction set alone, not on a clock: the same machine chooses the same again.
std::vector<WeightType> faster_types();

struct LoadPlan {
  Transformer::Options options;
  bool compares = false;  // types; options.weight_type is to be found
  ModelSize size;         // while it is loaded
};

// weight_type: nothing: the fastest that serves, but f32 of a small model and of one that keeps no
// state. Throws ModelError for what cannot be loaded, as far as is seen without reading weights.
LoadPlan plan_to_load(const ModelFiles& files, std::optional<WeightType> weight_type,
                      const std::optional<AttentionSpec>& attention, KvType kv_type = KvType::kF32);

struct LoadedModel {
  std::unique_ptr<const Transformer> transformer;
  // "int8 loses 0.0003 bits per token against f32, of at most 0.002"; empty: nothing was compared.
  std::string reason;
};

// Loads the model in the type of the plan; or in what is faster than f32, one type after the other,
// until one loses little enough against matrices that are read from the files as they are needed,
// so that the model is never there twice. Throws what Transformer::load does.
LoadedModel load_as_planned(const ModelFiles& files, const LoadPlan& plan);

}  // namespace lintel
