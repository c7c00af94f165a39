// SPDX-License-Identifier: Apache-2.0
// The 16-bit floats of weights.
#pragma once

#include <bit>
#include <cstdint>

namespace lintel {

// Exact.
inline float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
float f16_to_f32(std::uint16_t bits);
// Round to nearest, ties to even; overflow becomes infinity, NaN stays NaN.
std::uint16_t f32_to_bf16(float value);
std::uint16_t f32_to_f16(float value);

}  // namespace lintel
