// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes as a JSON Schema.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lintel::fuzz;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  within_time(try_schema, bytes);
  within_time(try_relaxed_schema, bytes);
  return 0;
}
