// How weights are held in memory and multiplied. Any model directory can be loaded as any of them.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace lintel {

enum class WeightType { kF32, kBf16, kInt8 };

inline constexpr std::array kWeightTypes = {WeightType::kF32, WeightType::kBf16, WeightType::kInt8};

const char* to_string(WeightType type);  // "f32", "bf16", "int8"
std::optional<WeightType> weight_type_named(std::string_view name);

}  // namespace lintel
