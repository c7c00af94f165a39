// SPDX-License-Identifier: Apache-2.0
// Products with matrices of blocks of integers. SIMD by Highway; the same rules as dense_kernels.h.
//
// Inputs are bytes with a scale for each 32 or 128. An output is the sum over groups of inputs, in
// order, of an exact integer times the group's scales, or with weights of Q4_0 and inputs of 128
// the sum over these of their scale times such a sum: the bits depend neither on the tile nor on
// the instruction set, where it has fused multiply-adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "model/core/tensor.h"
#include "model/ops/block_matrix.h"

namespace lintel {

// Rows of inputs as the kernels read them.
struct BlockInput {
  // [rows, inputs / 4] of four signed bytes. For AMX the rows are readable up to whole tiles of 16;
  // what is in them is not used.
  const std::uint32_t* cells = nullptr;
  std::size_t cell_stride = 0;
  const float* scales = nullptr;       // [rows, inputs / 32]
  const std::int32_t* sums = nullptr;  // [rows, inputs / 16] of the bytes
  // Sums of the bytes that share a scale, if scales are the same for each 128 inputs: [rows,
  // scale_stride / 4, rounded up].
  const std::int32_t* group_sums = nullptr;
  std::size_t scale_stride = 0;  // of scales; of sums twice as many
};

// y = x W^T + b, or y += that, of the panels first_panel .. end_panel - 1.
struct BlockProduct {
  const BlockMatrix* weights = nullptr;
  BlockInput x;
  const float* bias = nullptr;  // [out_features]
  MatrixView<float> y;          // [rows, out_features]
  bool add = false;
  std::size_t first_panel = 0;
  std::size_t end_panel = 0;
};

// The fastest kernels of this machine, or where `portable` those of Highway. Allocates nothing.
void multiply(const BlockProduct& product, bool portable = false);

// The same on AMX's tiles, or on tiles made of plain C++: the bits of every other kernel.
// REQUIRES: fits_tiles(*product.weights); AMX: amx_available().
void multiply_blocks_on_amx(const BlockProduct& product);
void multiply_blocks_on_twin_tiles(const BlockProduct& product);
// True if the inputs are whole tiles of 64 and no group is smaller than 32.
bool fits_tiles(const BlockMatrix& weights);

// True if the machine has instructions for products of bytes.
bool has_byte_products();

// "avx512_vnni", "avx_vnni", "neon_dotprod", "highway (AVX2)", "amx_int8, below 8 rows
// avx512_vnni".
std::string block_product_description();

}  // namespace lintel
