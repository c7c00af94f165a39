// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes as a model.safetensors.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  lintel::fuzz::within_time(lintel::fuzz::try_safetensors, bytes);
  // Most mutations break the length in front. Once more with the right one, the header ending at
  // the last brace, so that what lies after it is reached.
  const std::size_t end = bytes.rfind('}');
  if (size < 8 || end == bytes.npos || end < 8) return 0;
  std::string repaired(bytes);
  const std::uint64_t length = end + 1 - 8;
  for (int i = 0; i < 8; ++i) repaired[i] = static_cast<char>(length >> (8 * i));
  lintel::fuzz::within_time(lintel::fuzz::try_safetensors, repaired);
  return 0;
}
