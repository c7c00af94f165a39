// SPDX-License-Identifier: Apache-2.0
#include "model/ops/block_formats.h"

#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "model/core/float_formats.h"

namespace lintel {

// A block has a scale d and, in Q4_K and Q5_K, a scale of minima dmin, both f16. The blocks of 256
// have a small integer scale for each 32 (Q4_K, Q5_K) or 16 values (Q6_K), too. Zeros keep the sign
// of the products as written here.

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

int signed_at(const std::byte* bytes) { return value_at<std::int8_t>(bytes); }

// d f16, q i8[32]
void dequantize_q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(signed_at(block + 2 + i));
}

// d f16, q u8[16]: the lower halves of the bytes are the first 16 values
void dequantize_q4_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    const int q = unsigned_at(block + 2 + i);
    out[i] = d * static_cast<float>((q & 15) - 8);
    out[i + 16] = d * static_cast<float>((q >> 4) - 8);
  }
}

struct ScaleAndMinimum {
  int scale;
  int minimum;
};

// The j-th of eight pairs of 6 bits in 12 bytes: four of each in the lower six bits of the first
// eight bytes; of the others four bits each in the last four bytes, and the upper two bits in those
// that the first eight left.
ScaleAndMinimum scale_and_minimum(const std::byte* s, int j) {
  if (j < 4) return {unsigned_at(s + j) & 63, unsigned_at(s + j + 4) & 63};
  const int low = unsigned_at(s + j + 4);
  const int scale_high = unsigned_at(s + j - 4) >> 6;
  const int minimum_high = unsigned_at(s + j) >> 6;
  return {(low & 15) | scale_high << 4, (low >> 4) | minimum_high << 4};
}

// d f16, dmin f16, scales and minima u8[12], q u8[128]; a Q5_K has h u8[32] before q, whose byte i
// holds the fifth bits of the i-th values of all eight groups.
template <bool kFiveBits>
void dequantize_q4_or_q5_k(const std::byte* block, float* out) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  const std::byte* const h = block + 16;
  for (int j = 0; j < 8; ++j) {
    const auto [scale, minimum] = scale_and_minimum(block + 4, j);
    const float d_scale = d * static_cast<float>(scale);
    const float d_minimum = dmin * static_cast<float>(minimum);
    const std::byte* const q = block + (kFiveBits ? 48 : 16) + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      int value = unsigned_at(q + i) >> (j % 2 * 4) & 15;
      if (kFiveBits) value += (unsigned_at(h + i) >> j & 1) << 4;
      out[32 * j + i] = d_scale * static_cast<float>(value) - d_minimum;
    }
  }
}

// l u8[128], h u8[64], s i8[16], d f16: two halves of 128 values, four groups of 32 in each. The
// lower four bits of groups 0 and 2 are in one run of 32 bytes of l, those of 1 and 3 in the next;
// a byte of h has two upper bits for each group.
void dequantize_q6_k(const std::byte* block, float* out) {
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* const l = block + 64 * half;
    const std::byte* const h = block + 128 + 32 * half;
    const std::byte* const s = block + 192 + 8 * half;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const int low = unsigned_at(l + 32 * (group % 2) + i) >> (group / 2 * 4) & 15;
        const int high = unsigned_at(h + i) >> (2 * group) & 3;
        const float scale = d * static_cast<float>(signed_at(s + 2 * group + i / 16));
        out[128 * half + 32 * group + i] = scale * static_cast<float>((low | high << 4) - 32);
      }
    }
  }
}

void dequantize_block(DType type, const std::byte* block, float* out) {
  switch (type) {
    case DType::kF32:
      *out = value_at<float>(block);
      return;
    case DType::kF16:
      *out = half_at(block);
      return;
    case DType::kBf16:
      *out = bf16_to_f32(value_at<std::uint16_t>(block));
      return;
    case DType::kQ8_0:
      return dequantize_q8_0(block, out);
    case DType::kQ4_0:
      return dequantize_q4_0(block, out);
    case DType::kQ4_K:
      return dequantize_q4_or_q5_k<false>(block, out);
    case DType::kQ5_K:
      return dequantize_q4_or_q5_k<true>(block, out);
    case DType::kQ6_K:
      return dequantize_q6_k(block, out);
  }
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

void dequantize(DType type, std::span<const std::byte> blocks, std::span<float> out) {
  assert(blocks.size() % bytes_per_block(type) == 0);
  assert(out.size() * bytes_per_block(type) == blocks.size() * values_per_block(type));
  if (type == DType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), blocks.data(), blocks.size());
    return;
  }
  const std::size_t values = values_per_block(type);
  const std::size_t bytes = bytes_per_block(type);
  for (std::size_t b = 0; b * bytes < blocks.size(); ++b) {
    dequantize_block(type, blocks.data() + b * bytes, out.data() + b * values);
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
