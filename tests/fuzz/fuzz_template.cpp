// SPDX-License-Identifier: Apache-2.0
// libFuzzer target fuzz_template: bytes as a chat template; and, where they begin with 0xFF, as
// choices of the grammar of template_seeds.cpp.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/template_inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lintel::fuzz;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool is_grammar = !bytes.empty() && bytes[0] == '\xFF';
  const std::string source = is_grammar ? template_of(bytes.substr(1)) : std::string(bytes);
  within_time(try_template, source);
  return 0;
}
