// libFuzzer target: bytes as an envelope, and as base64.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/web_inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lintel::fuzz::try_web_frame({reinterpret_cast<const char*>(data), size});
  return 0;
}
