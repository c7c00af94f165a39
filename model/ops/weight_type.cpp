#include "model/ops/weight_type.h"

namespace lintel {

const char* to_string(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kInt8:
      return "int8";
  }
  return "unknown";
}

std::optional<WeightType> weight_type_named(std::string_view name) {
  for (const WeightType type : kWeightTypes) {
    if (name == to_string(type)) return type;
  }
  return std::nullopt;
}

}  // namespace lintel
