// SPDX-License-Identifier: Apache-2.0
// The values of weights as files hold them: floats, and blocks of integers that share scales.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "model/core/dtype.h"

namespace lintel {

// The values of whole blocks, in order. The result is one bit pattern on every machine: all
// products are exact in f32, and Q4_K and Q5_K round once, at the subtraction of the minimum.
// REQUIRES: blocks are of whole blocks, and out has their values: out.size() * bytes_per_block ==
// blocks.size() * values_per_block.
void dequantize(DType type, std::span<const std::byte> blocks, std::span<float> out);

// Index of the first block with a scale that is NaN or infinite, which in F32, F16 and BF16 is a
// value. Without one all values are finite. REQUIRES: whole blocks.
std::optional<std::size_t> first_non_finite(DType type, std::span<const std::byte> blocks);

}  // namespace lintel
