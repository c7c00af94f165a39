#include "model/fastest_type.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "model/bits_lost.h"
#include "model/core/model_error.h"
#include "model/formats/model_files.h"
#include "model/formats/tensor_list.h"

namespace lintel {
namespace {

std::string digits(double bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", bits);
  return text;
}

// Nothing: the model cannot be had in this type.
std::optional<ModelSize> measured(const ModelFiles& files, const Transformer::Options& options) {
  try {
    return measure_model(files, options);
  } catch (const ModelError&) {
    return std::nullopt;
  }
}

bool is_worth_comparing(const ModelFiles& files, const Transformer::Options& options) {
  if (options.attention && options.attention->recompute) return false;
  std::int64_t weights = 0;
  for (const TensorSpec& spec : list_tensors(files.config())) {
    if (!spec.is_projection) continue;
    std::int64_t elements = 1;
    for (const std::int64_t size : spec.shape) elements *= size;
    weights += elements;
  }
  return weights >= kFewestWeights && !faster_types().empty();
}

// While load_as_planned() compares.
ModelSize size_of_comparing(const ModelFiles& files, Transformer::Options options) {
  options.weight_type = WeightType::kF32;
  ModelSize size = measure_model(files, options);
  std::size_t most_beside = 0;
  for (const WeightType type : faster_types()) {
    options.weight_type = type;
    if (const auto beside = measured(files, options)) {
      most_beside = std::max(most_beside, beside->resident_bytes);
    }
  }
  size.loading_bytes += most_beside;
  return size;
}

}  // namespace

std::vector<WeightType> faster_types() {
  std::vector<WeightType> types;
  for (const WeightType type : {WeightType::kInt8, WeightType::kBf16}) {
    if (is_faster_than_f32(type)) types.push_back(type);
  }
  return types;
}

LoadPlan plan_to_load(const ModelFiles& files, std::optional<WeightType> weight_type,
                      const std::optional<AttentionSpec>& attention) {
  LoadPlan plan{.options = {.attention = attention}};
  plan.compares = !weight_type && is_worth_comparing(files, plan.options);
  plan.options.weight_type = weight_type.value_or(WeightType::kF32);
  plan.size =
      plan.compares ? size_of_comparing(files, plan.options) : measure_model(files, plan.options);
  return plan;
}

LoadedModel load_as_planned(const ModelFiles& files, const LoadPlan& plan) {
  if (!plan.compares) return {Transformer::load(files, plan.options), ""};
  Transformer::Options options = plan.options;
  options.weight_type = WeightType::kF32;
  std::unique_ptr<const Transformer> exact = Transformer::load(files, options);
  std::string refused;
  for (const WeightType type : faster_types()) {
    options.weight_type = type;
    if (!measured(files, options)) continue;
    std::unique_ptr<const Transformer> narrow = Transformer::load(files, options);
    const double lost = bits_lost(*exact, *narrow);
    const std::string loss = digits(lost) + " bits a value against f32";
    if (lost <= kMostBitsLost) {  // not of NaN
      return {std::move(narrow), std::string(to_string(type)) + " loses " + loss + ", of at most " +
                                     digits(kMostBitsLost)};
    }
    refused += (refused.empty() ? "" : ", ") + std::string(to_string(type)) + " would lose " +
               loss + ", more than " + digits(kMostBitsLost);
  }
  return {std::move(exact), refused.empty() ? "nothing faster takes this model" : refused};
}

}  // namespace lintel
