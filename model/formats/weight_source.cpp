// SPDX-License-Identifier: Apache-2.0
#include "model/formats/weight_source.h"

namespace lintel {

std::int64_t TensorInfo::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t d : shape) count *= d;
  return count;
}

std::uint64_t TensorInfo::num_bytes() const {
  return static_cast<std::uint64_t>(num_elements()) / values_per_block(type) *
         bytes_per_block(type);
}

}  // namespace lintel
