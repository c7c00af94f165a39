// SPDX-License-Identifier: Apache-2.0
// KvType: how the keys and values of softmax attention are held in a cache.
#pragma once

#include <array>
#include <cstddef>

#include "model/ops/weight_type.h"

namespace lintel {

// int8: with a scale for each position and head, of keys and of values.
enum class KvType { kF32, kBf16, kInt8 };

inline constexpr std::array kKvTypes = {KvType::kF32, KvType::kBf16, KvType::kInt8};

const char* to_string(KvType type);  // "f32", "bf16", "int8"
// The type of KV caches where none was chosen: f32 for weights in f32, else bf16.
KvType kv_type_for(WeightType weights);

}  // namespace lintel
