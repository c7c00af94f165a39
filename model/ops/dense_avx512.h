// SPDX-License-Identifier: Apache-2.0
// Tiles for instructions that Highway has no words for. Only dense_kernels.cpp includes this.
#pragma once

#include "model/ops/dense_tiles.h"

namespace lintel {

// AVX512_VNNI for int8, AVX512_BF16 for bf16. Null where this machine or compiler has not got them.
const TileSet* avx512_tiles(WeightType type);

}  // namespace lintel
