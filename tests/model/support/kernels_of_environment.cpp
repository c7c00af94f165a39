// SPDX-License-Identifier: Apache-2.0
// LINTEL_TEST_KERNELS=own|onednn|twin[,ISA]: what multiplies in all tests of this process. twin:
// our kernels for AMX, on tiles of plain C++. ISA: ONEDNN_MAX_CPU_ISA, for ctest loses a second
// variable.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/ops/dense_amx.h"
#include "model/ops/weight_type.h"

namespace lintel {
namespace {

[[maybe_unused]] const bool chosen = [] {
  const char* const given = std::getenv("LINTEL_TEST_KERNELS");
  if (given == nullptr) return false;
  const std::string text = given;
  const std::size_t comma = text.find(',');
  if (comma != std::string::npos) {
    setenv("ONEDNN_MAX_CPU_ISA", text.substr(comma + 1).c_str(), /*overwrite=*/1);
  }
  const std::string kernels = text.substr(0, comma);
  if (kernels == "twin") {
    use_twin_tiles(true);
    return true;
  }
  const auto choice = kernels_named(kernels);
  if (!choice) {
    std::fprintf(stderr, "LINTEL_TEST_KERNELS: expected own, onednn or twin\n");
    std::exit(EXIT_FAILURE);
  }
  choose_kernels(*choice);
  return true;
}();

}  // namespace
}  // namespace lintel
