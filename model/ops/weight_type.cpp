// SPDX-License-Identifier: Apache-2.0
#include "model/ops/weight_type.h"

#include <atomic>

namespace lintel {

const char* to_string(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kInt8:
    case WeightType::kInt8Groups:
      return "int8";
    case WeightType::kBlocks:
      return "blocks";
    case WeightType::kInt4:
      return "int4";
    case WeightType::kInt4Ffn:
      return "int4-ffn";
    case WeightType::kInt4All:
      return "int4-all";
  }
  return "unknown";
}

std::optional<WeightType> weight_type_named(std::string_view name) {
  for (const WeightType type : kWeightTypes) {
    if (name == to_string(type)) return type;
  }
  for (const WeightType type :
       {WeightType::kBlocks, WeightType::kInt4, WeightType::kInt4Ffn, WeightType::kInt4All}) {
    if (name == to_string(type)) return type;
  }
  return std::nullopt;
}

WeightType weight_type_of(WeightType model, WeightRole role) {
  switch (model) {
    case WeightType::kInt4:
      return role == WeightRole::kHead ? WeightType::kInt8Groups : model;
    case WeightType::kInt4Ffn:
      return role == WeightRole::kChannels ? WeightType::kInt4 : WeightType::kInt8Groups;
    case WeightType::kInt4All:
      return WeightType::kInt4;
    default:
      return model;
  }
}

WeightType input_type_of(WeightType type) {
  const bool has_4_bits =
      type == WeightType::kInt4 || type == WeightType::kInt4Ffn || type == WeightType::kInt4All;
  return has_4_bits ? WeightType::kInt8Groups : type;
}

namespace {

std::atomic<KernelChoice> of_process{KernelChoice::kAuto};

}  // namespace

const char* to_string(KernelChoice choice) {
  switch (choice) {
    case KernelChoice::kAuto:
      return "auto";
    case KernelChoice::kOwn:
      return "own";
    case KernelChoice::kOneDnn:
      return "onednn";
  }
  return "unknown";
}

std::optional<KernelChoice> kernels_named(std::string_view name) {
  for (const KernelChoice choice : kKernelChoices) {
    if (name == to_string(choice)) return choice;
  }
  return std::nullopt;
}

void choose_kernels(KernelChoice choice) { of_process.store(choice); }
KernelChoice chosen_kernels() { return of_process.load(); }

}  // namespace lintel
