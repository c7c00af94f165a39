// SPDX-License-Identifier: Apache-2.0
// DType: how the values of a tensor lie in a file.
#pragma once

#include <cstddef>

namespace lintel {

// The last five are GGUF's blocks (see block_formats.h).
enum class DType { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_K, kQ5_K, kQ6_K };

const char* to_string(DType type);  // "F32", "Q4_K"
// Values of a block, and its bytes; a block of F32, F16 or BF16 is one value. Blocks do not cross
// the rows of a tensor.
std::size_t values_per_block(DType type);
std::size_t bytes_per_block(DType type);

}  // namespace lintel
