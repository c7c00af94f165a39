// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes as a script of what a WebSocket's client sends during turns.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/web_inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lintel::fuzz;
  within_time(try_web_turns, std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
