// libFuzzer target: bytes as an adapter_config.json.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lintel::fuzz::try_adapter_config({reinterpret_cast<const char*>(data), size});
  return 0;
}
