// SPDX-License-Identifier: Apache-2.0
// Checks that a machine's tiles compute what they are documented to.
#pragma once

#include "model/ops/block_product.h"
#include "model/ops/dense_kernels.h"

namespace lintel {

// True if `multiply` has the bits of the twin in plain C++ for a small product with remainders in
// every direction. int8 or bf16.
bool multiplies_as_twin(WeightType type, void (*multiply)(const Product& product));

// True if `multiply` has the bits of the portable kernels for small matrices of int8 and of int4.
bool multiplies_blocks_exactly(void (*multiply)(const BlockProduct& product));

// The same of the kernels on AMX, asked once for int8, bf16 and blocks: a processor, an emulator or
// a hypervisor whose tiles are others is served by vectors. REQUIRES: amx_available().
bool amx_is_right(WeightType type);

}  // namespace lintel
