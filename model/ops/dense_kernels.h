// SPDX-License-Identifier: Apache-2.0
// The matrix products behind Dense: one packed layout, and kernels for each instruction set.
//
// Every output is one chain of multiply-adds over the inputs, in order, from zero (with AMX's bf16
// a chain of tiles, dense_amx.h): which tile of rows or columns it is computed in changes the
// speed, not the bits. int8 sums are exact integers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "model/ops/packed_weights.h"
#include "model/ops/weight_type.h"

namespace lintel {

// y = x W^T + b, or y += that.
struct Product {
  const PackedWeights* weights = nullptr;
  // [rows, row_cells], x_stride cells apart; int8: unsigned bytes. For AMX the rows are readable up
  // to whole tiles (what is in them is not used), and bf16's and int8's cells past row_cells are 0.
  const std::uint32_t* x = nullptr;
  std::size_t x_stride = 0;         // input_stride(row_cells)
  const float* x_scales = nullptr;  // [rows]; int8
  std::int32_t x_zero = 0;          // int8: the byte that stands for 0
  std::size_t rows = 0;
  // The weights' groups of columns whose outputs are computed; up to the last group.
  std::size_t first_group = 0;
  std::size_t end_group = SIZE_MAX;
  float* y = nullptr;  // [rows, out_features]
  std::size_t y_stride = 0;
  bool relu = false;
  bool add = false;  // not with `relu`
  // Not null, only with `relu` and where writes_bf16(): the outputs are written here, as bf16, and
  // not to y. [rows, out_features].
  std::uint16_t* y_bf16 = nullptr;
  std::size_t y_bf16_stride = 0;
  PrefetchList* prefetch = nullptr;  // not null: what it has is asked for, as far as time allows

  std::size_t groups_end() const { return std::min(end_group, weights->num_groups()); }
};

// The fastest kernels of this machine for the type, or where `portable` those that Highway makes.
// Allocates nothing.
void multiply(const Product& product, bool portable = false);

// Finishes a product from the sums of `raw`, [rows, out_features] without gaps, int32 for int8 and
// f32 else: computes y, or adds to it. For sums that others have computed.
void finish_sums(const Product& product, const std::uint32_t* raw);

// True if there are instructions for the type itself, and multiply() uses them.
bool has_special_tiles(WeightType type);

// True if multiply() runs the type on AMX's tiles, or on their twin; kBlocks: matrices that fit
// them (block_product.h).
bool runs_on_tiles(WeightType type);

// True if vpdpbusd may be used: that of AVX-512, or without AVX-512 that of AVX-VNNI, of 256 bits.
bool has_vnni();
bool has_avx_vnni();

// True if Highway may use AVX2 or better.
bool has_avx2();

// True if multiply() supports Product::y_bf16 for the type: it runs on tiles, which leave their
// sums to be finished block by block.
bool writes_bf16(WeightType type);

// Names the kernels that multiply() uses for a type: "amx_int8", "avx512_vnni", "avx_vnni",
// "highway (AVX2)".
std::string multiply_description(WeightType type);

// The highest instruction set that multiply() may use; each includes those before it.
enum class InstructionSet { kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };
// For the whole process, before the first product: this machine behaves as a lesser one.
void limit_instruction_set(InstructionSet most);

}  // namespace lintel
