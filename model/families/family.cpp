// SPDX-License-Identifier: Apache-2.0
#include "model/families/family.h"

#include <algorithm>

namespace lintel {
namespace {

constexpr const ModelFamily* kFamilies[] = {&family_qwen3_5, &family_qwen3_5_moe, &family_rwkv7,
                                            &family_fla};

}  // namespace

WeightType family_type_of(WeightType type) {
  return type == WeightType::kInt8 ? WeightType::kInt8Groups : type;
}

const ModelFamily* find_family(std::string_view model_type) {
  for (const ModelFamily* const family : kFamilies) {
    if (std::ranges::find(family->model_types, model_type) != family->model_types.end()) {
      return family;
    }
  }
  return nullptr;
}

const ModelFamily* find_architecture(std::string_view architecture) {
  for (const ModelFamily* const family : kFamilies) {
    if (family->architecture != nullptr && architecture == family->architecture) return family;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const ModelFamily* const family : kFamilies) {
    if (family->architecture == nullptr) continue;
    names += (names.empty() ? "" : ", ") + std::string(family->architecture);
  }
  return names;
}

std::string family_names() {
  std::string names;
  for (const ModelFamily* const family : kFamilies) {
    for (const char* const name : family->model_types) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
  }
  return names;
}

}  // namespace lintel
