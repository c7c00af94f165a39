// SPDX-License-Identifier: Apache-2.0
// How many bytes the process has allocated and not freed.
#pragma once

#include <malloc.h>

#include <cstddef>

#include "model/core/tensor.h"

namespace lintel::testing {

inline std::size_t memory_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd + page_arena().used_bytes();
}

}  // namespace lintel::testing
