// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes as a grammar in GBNF.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/mutations.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lintel::fuzz;
  within_time(try_gbnf, std::string_view(reinterpret_cast<const char*>(data), size));
  // The same bytes as the seed of rules that are ambiguous.
  std::uint64_t seed = 0;
  for (std::size_t i = 0; i < size; ++i) seed = seed * 257 + data[i];
  within_time(try_gbnf, random_gbnf(seed));
  return 0;
}
