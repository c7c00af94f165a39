// SPDX-License-Identifier: Apache-2.0
#include "model/core/dtype.h"

namespace lintel {
namespace {

struct BlockLayout {
  const char* name;
  std::size_t values;
  std::size_t bytes;
};

BlockLayout layout_of(DType type) {
  switch (type) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBf16:
      return {"BF16", 1, 2};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
  }
  return {"", 1, 1};
}

}  // namespace

const char* to_string(DType type) { return layout_of(type).name; }

std::size_t values_per_block(DType type) { return layout_of(type).values; }

std::size_t bytes_per_block(DType type) { return layout_of(type).bytes; }

}  // namespace lintel
