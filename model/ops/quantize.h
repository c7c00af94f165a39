// SPDX-License-Identifier: Apache-2.0
// A row of floats as bf16 or as bytes. SIMD by Highway; the same rules as kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/core/tensor.h"

namespace lintel {

// Functions with `cells` write whole ones of four bytes: 2 bf16, or 4 bytes, in memory order. What
// is left of the last one is written as 0.

// Rounds to nearest, ties to even; NaN stays NaN.
void round_to_bf16(std::span<const float> x, std::uint32_t* cells);

// bf16 to f32, exact. `values` need no alignment.
void widen_bf16(std::span<const std::byte> values, std::span<float> out);

// bytes = 128 + round(x / scale) with scale = max |x| / 127, which is returned; 1 if all are 0.
// Where there is an infinity or NaN, the scale is one, and so is all that is computed from it.
float quantize_signed(std::span<const float> x, std::uint32_t* cells);

// bytes = round(x / scale) with scale = max x / 255. REQUIRES: no x < 0.
float quantize_non_negative(std::span<const float> x, std::uint32_t* cells);

// bytes = round(x / scale), signed, to nearest, ties to even. REQUIRES: |x| <= 127 scale.
void round_to_levels(std::span<const float> x, float scale, std::uint32_t* cells);

// bytes = round(x / scale), signed, with scale = max |x| / 127 of each 32 values, 1 if all are 0.
// scales: [x.size() / 32, rounded up]; sums: of the bytes of each 16, twice as many. What is left
// of the last 32 values is 0. Infinity and NaN as in quantize_signed.
void quantize_groups(std::span<const float> x, std::uint32_t* cells, float* scales,
                     std::int32_t* sums);

// The same with a scale for each 128 values, which stands in `scales` four times. group_sums: of
// the bytes of each 128: [x.size() / 128, rounded up].
void quantize_large_groups(std::span<const float> x, std::uint32_t* cells, float* scales,
                           std::int32_t* sums, std::int32_t* group_sums);

// For BlockMatrix, of at most 64 rows, which become the columns of its lines.
// 32 columns as blocks of Q4_0: value = d (level - 8). x: [rows, 32]; lines: 4 of 256 bytes, which
// are zero; d: [rows] f16. Of 19 scales of a row the one with the smallest sum of squared errors.
void quantize_to_4_bits(MatrixView<const float> x, std::uint8_t* lines, std::uint16_t* d);
// value = scale (level - 128), scale = max |x| / 127 of the row, 1 if all are 0. REQUIRES: x is
// finite. lines: [x.cols() / 4, rounded up]
// of 256 bytes; scales: [rows].
void quantize_to_8_bits(MatrixView<const float> x, std::uint8_t* lines, float* scales);

}  // namespace lintel
