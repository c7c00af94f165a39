// SPDX-License-Identifier: Apache-2.0
#include "model/layers/layer_state.h"

#include <string>

#include "model/core/errors.h"
#include "model/core/kernels.h"

namespace lintel {

void check_saved(const char* what, std::uint64_t found, std::uint64_t expected) {
  if (found == expected) return;
  throw ModelError(std::string("saved state: found ") + what + " " + std::to_string(found) +
                   ", expected " + std::to_string(expected));
}

void read_finite(StateReader& reader, std::span<float> values) {
  reader.values(values);
  if (!all_finite(values)) throw ModelError("saved state: found a float that is not finite");
}

}  // namespace lintel
