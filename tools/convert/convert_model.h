// SPDX-License-Identifier: Apache-2.0
// A model directory to another, with its weights in another type or an adapter merged into them.
#pragma once

#include <filesystem>

#include "model/ops/dense.h"

namespace lintel {

// Writes `to`, which must not exist yet: config.json as it is, and model.safetensors. kBf16 rounds
// the matrices that --weight-type bf16 would round at load, so that serving `to` in bf16 gives the
// bits of serving `from` in bf16; other tensors keep their type. kF32 widens all, exactly. `to`
// appears complete or not at all. Throws ModelError naming file and reason; kInt8 is refused: the
// format has no place for it.
//
// adapter: a directory of a LoRA adapter that becomes part of the weights, in double, before they
// are rounded; what it adapts is f32 where kBf16 does not round it. The model is one of its own,
// with another fingerprint. Empty: none.
void convert_model(const std::filesystem::path& from, const std::filesystem::path& to,
                   WeightType type, const std::filesystem::path& adapter = {});

}  // namespace lintel
