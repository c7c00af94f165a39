// SPDX-License-Identifier: Apache-2.0
// Products on the tiles of AMX, for int8 and bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/ops/dense_kernels.h"
#include "model/ops/tile_scope.h"

namespace lintel {

// A block of outputs is 32 x 32, or 16 rows x 64 columns where so few rows are left; its sums go
// over all inputs before they leave the tiles. So an output is the same chain in any block:
//  * int8: the exact sum, with the bits that every other kernel gives;
//  * bf16: tile after tile of 32 inputs, from zero; within one in the order of tdpbf16ps
//    (tiles-inl.h).
// REQUIRES: amx_available(); int8 or bf16.
void multiply_on_amx(const Product& product);

// The same on tiles made of plain C++, for tests on any machine.
void multiply_on_twin_tiles(const Product& product);

// From now on multiply() takes those as if this machine had AMX: so that whole models can be
// tested.
void use_twin_tiles(bool use);
bool uses_twin_tiles();

}  // namespace lintel
