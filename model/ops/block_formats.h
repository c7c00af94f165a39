// SPDX-License-Identifier: Apache-2.0
// The values of weights as files hold them: floats, and blocks of integers that share scales.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "model/core/dtype.h"

namespace lintel {

// The values of a block of integers follow from its levels, which are never negative:
//
//   value = d * scale[i / group] * (level[i] - zero) - dmin * minimum[i / group]
//
// without scale[] where it has no group scales, and without the subtraction where it has no minima.
struct BlockFormat {
  int values = 0;  // of a block
  int group = 0;   // values that share a scale: 16 or 32
  int bits = 0;    // of a level
  int zero = 0;
  bool has_group_scales = false;
  bool has_minima = false;
};

constexpr bool is_quantized(DType type) { return type >= DType::kQ8_0; }

// REQUIRES: is_quantized(type).
constexpr BlockFormat block_format(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {.values = 32, .group = 32, .bits = 8, .zero = 128};
    case DType::kQ4_0:
      return {.values = 32, .group = 32, .bits = 4, .zero = 8};
    case DType::kQ4_K:
      return {256, 32, 4, 0, /*has_group_scales=*/true, /*has_minima=*/true};
    case DType::kQ5_K:
      return {256, 32, 5, 0, /*has_group_scales=*/true, /*has_minima=*/true};
    case DType::kQ6_K:
      return {256, 16, 6, 32, /*has_group_scales=*/true, /*has_minima=*/false};
    default:
      return {};
  }
}

// The parts of a block. d and dmin are f16; a format has the first so many of each list.
struct UnpackedBlock {
  std::uint16_t d = 0;
  std::uint16_t dmin = 0;
  std::array<std::int8_t, 16> scales = {};  // Q4_K and Q5_K: 0 .. 63
  std::array<std::uint8_t, 8> minima = {};
  std::array<std::uint8_t, 256> levels = {};
};

// REQUIRES: is_quantized(type), and `block` has its bytes.
void unpack_block(DType type, const std::byte* block, UnpackedBlock& out);
// out: the values of an unpacked block, block_format(type).values of them.
void dequantize_block(const BlockFormat& format, const UnpackedBlock& block, float* out);

// The values of whole blocks, in order. The result is one bit pattern on every machine: all
// products are exact in f32, and Q4_K and Q5_K round once, at the subtraction of the minimum.
// REQUIRES: blocks are of whole blocks, and out has their values: out.size() * bytes_per_block ==
// blocks.size() * values_per_block.
void dequantize(DType type, std::span<const std::byte> blocks, std::span<float> out);

// Index of the first block with a scale that is NaN or infinite, which in F32, F16 and BF16 is a
// value. Without one all values are finite. REQUIRES: whole blocks.
std::optional<std::size_t> first_non_finite(DType type, std::span<const std::byte> blocks);

}  // namespace lintel
