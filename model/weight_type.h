// How weights are held in memory and multiplied. Any model directory can be loaded as any of them.
#pragma once

namespace lintel {

enum class WeightType { kF32, kBf16, kInt8 };

const char* to_string(WeightType type);  // "f32", "bf16", "int8"

}  // namespace lintel
