// SPDX-License-Identifier: Apache-2.0
#include "model/ops/block_formats.h"

#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "model/core/float_formats.h"
#include "model/ops/quantize.h"

namespace lintel {

namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie");

template <typename Value>
Value value_at(const std::byte* bytes) {
  Value value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float half_at(const std::byte* bytes) { return f16_to_f32(value_at<std::uint16_t>(bytes)); }

int unsigned_at(const std::byte* bytes) { return std::to_integer<int>(*bytes); }

std::uint8_t level_of(int bits) { return static_cast<std::uint8_t>(bits); }

// d f16, q i8[32]
void unpack_q8_0(const std::byte* block, UnpackedBlock& out) {
  out.d = value_at<std::uint16_t>(block);
  for (int i = 0; i < 32; ++i) out.levels[i] = level_of(unsigned_at(block + 2 + i) ^ 128);
}

// d f16, q u8[16]: the lower halves of the bytes are the first 16 values
void unpack_q4_0(const std::byte* block, UnpackedBlock& out) {
  out.d = value_at<std::uint16_t>(block);
  for (int i = 0; i < 16; ++i) {
    const int q = unsigned_at(block + 2 + i);
    out.levels[i] = level_of(q & 15);
    out.levels[i + 16] = level_of(q >> 4);
  }
}

// The j-th of eight pairs of 6 bits in 12 bytes: four of each in the lower six bits of the first
// eight bytes; of the others four bits each in the last four bytes, and the upper two bits in those
// that the first eight left.
void unpack_scale_and_minimum(const std::byte* s, int j, UnpackedBlock& out) {
  int scale = 0;
  int minimum = 0;
  if (j < 4) {
    scale = unsigned_at(s + j) & 63;
    minimum = unsigned_at(s + j + 4) & 63;
  } else {
    const int low = unsigned_at(s + j + 4);
    scale = (low & 15) | unsigned_at(s + j - 4) >> 6 << 4;
    minimum = (low >> 4) | unsigned_at(s + j) >> 6 << 4;
  }
  out.scales[j] = static_cast<std::int8_t>(scale);
  out.minima[j] = static_cast<std::uint8_t>(minimum);
}

// d f16, dmin f16, scales and minima u8[12], q u8[128]; a Q5_K has h u8[32] before q, whose byte i
// holds the fifth bits of the i-th values of all eight groups.
template <bool kFiveBits>
void unpack_q4_or_q5_k(const std::byte* block, UnpackedBlock& out) {
  out.d = value_at<std::uint16_t>(block);
  out.dmin = value_at<std::uint16_t>(block + 2);
  const std::byte* const h = block + 16;
  for (int j = 0; j < 8; ++j) {
    unpack_scale_and_minimum(block + 4, j, out);
    const std::byte* const q = block + (kFiveBits ? 48 : 16) + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      int level = unsigned_at(q + i) >> (j % 2 * 4) & 15;
      if (kFiveBits) level += (unsigned_at(h + i) >> j & 1) << 4;
      out.levels[32 * j + i] = level_of(level);
    }
  }
}

// l u8[128], h u8[64], s i8[16], d f16: two halves of 128 values, four groups of 32 in each. The
// lower four bits of groups 0 and 2 are in one run of 32 bytes of l, those of 1 and 3 in the next;
// a byte of h has two upper bits for each group.
void unpack_q6_k(const std::byte* block, UnpackedBlock& out) {
  out.d = value_at<std::uint16_t>(block + 208);
  std::memcpy(out.scales.data(), block + 192, out.scales.size());
  for (int half = 0; half < 2; ++half) {
    const std::byte* const l = block + 64 * half;
    const std::byte* const h = block + 128 + 32 * half;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const int low = unsigned_at(l + 32 * (group % 2) + i) >> (group / 2 * 4) & 15;
        const int high = unsigned_at(h + i) >> (2 * group) & 3;
        out.levels[128 * half + 32 * group + i] = level_of(low | high << 4);
      }
    }
  }
}

void dequantize_floats(DType type, std::span<const std::byte> values, std::span<float> out) {
  if (type == DType::kF16) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = half_at(values.data() + 2 * i);
    return;
  }
  widen_bf16(values, out);
}

bool half_is_finite(const std::byte* bytes) {
  return (value_at<std::uint16_t>(bytes) & 0x7c00u) != 0x7c00u;
}

bool block_is_finite(DType type, const std::byte* block) {
  switch (type) {
    case DType::kF32:
      return (value_at<std::uint32_t>(block) & 0x7f800000u) != 0x7f800000u;
    case DType::kBf16:
      return (value_at<std::uint16_t>(block) & 0x7f80u) != 0x7f80u;
    case DType::kF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
      return half_is_finite(block);
    case DType::kQ4_K:
    case DType::kQ5_K:
      return half_is_finite(block) && half_is_finite(block + 2);
    case DType::kQ6_K:
      return half_is_finite(block + 208);
  }
  return false;
}

}  // namespace

void unpack_block(DType type, const std::byte* block, UnpackedBlock& out) {
  assert(is_quantized(type));
  if (type == DType::kQ8_0) unpack_q8_0(block, out);
  if (type == DType::kQ4_0) unpack_q4_0(block, out);
  if (type == DType::kQ4_K) unpack_q4_or_q5_k<false>(block, out);
  if (type == DType::kQ5_K) unpack_q4_or_q5_k<true>(block, out);
  if (type == DType::kQ6_K) unpack_q6_k(block, out);
}

// The order of the factors is fixed, as it decides the sign of zeros.
void dequantize_block(const BlockFormat& format, const UnpackedBlock& block, float* out) {
  const float d = f16_to_f32(block.d);
  const float dmin = f16_to_f32(block.dmin);
  for (int g = 0; g < format.values / format.group; ++g) {
    const float scale = format.has_group_scales ? d * static_cast<float>(block.scales[g]) : d;
    const float minimum = format.has_minima ? dmin * static_cast<float>(block.minima[g]) : 0.0f;
    for (int i = g * format.group; i < (g + 1) * format.group; ++i) {
      const float value = scale * static_cast<float>(block.levels[i] - format.zero);
      out[i] = format.has_minima ? value - minimum : value;
    }
  }
}

void dequantize(DType type, std::span<const std::byte> blocks, std::span<float> out) {
  assert(blocks.size() % bytes_per_block(type) == 0);
  assert(out.size() * bytes_per_block(type) == blocks.size() * values_per_block(type));
  if (type == DType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), blocks.data(), blocks.size());
    return;
  }
  if (!is_quantized(type)) return dequantize_floats(type, blocks, out);
  const BlockFormat format = block_format(type);
  const std::size_t bytes = bytes_per_block(type);
  UnpackedBlock block;
  for (std::size_t b = 0; b * bytes < blocks.size(); ++b) {
    unpack_block(type, blocks.data() + b * bytes, block);
    dequantize_block(format, block, out.data() + b * static_cast<std::size_t>(format.values));
  }
}

std::optional<std::size_t> first_non_finite(DType type, std::span<const std::byte> blocks) {
  const std::size_t bytes = bytes_per_block(type);
  assert(blocks.size() % bytes == 0);
  for (std::size_t b = 0; b * bytes < blocks.size(); ++b) {
    if (!block_is_finite(type, blocks.data() + b * bytes)) return b;
  }
  return std::nullopt;
}

}  // namespace lintel
