// The type of a model's matrices where the operator chose none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model_size.h"
#include "model/transformer.h"

namespace lintel {

// Of bits a value: a model is served in the fastest type that loses no more against f32.
inline constexpr double kMostBitsLost = 0.002;
// Of weights in a model whose time matrices take; smaller ones stay in f32.
inline constexpr std::int64_t kFewestWeights = 200'000;

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
                      const std::optional<AttentionSpec>& attention);

struct LoadedModel {
  std::unique_ptr<const Transformer> transformer;
  // "int8 loses 0.0003 bits a value against f32, of at most 0.002"; empty: nothing was compared.
  std::string reason;
};

// Loads the model in f32 and in what is faster, one after the other, until one loses little enough;
// or in the type of the plan. Throws what Transformer::load does.
LoadedModel load_as_planned(const ModelFiles& files, const LoadPlan& plan);

}  // namespace lintel
