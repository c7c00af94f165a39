// What loading a saved state has to refuse, for every kind of attention.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/core/kernels.h"
#include "model/core/model_error.h"
#include "model/core/state_stream.h"

namespace lintel {

// Throws ModelError unless what was read is what the state has to have.
inline void check_saved(const char* what, std::uint64_t found, std::uint64_t expected) {
  if (found == expected) return;
  throw ModelError(std::string("saved state: found ") + what + " " + std::to_string(found) +
                   ", expected " + std::to_string(expected));
}

// Reads as many floats. Throws ModelError where one is not finite: it would spread to all that is
// computed from the state.
inline void read_finite(StateReader& reader, std::span<float> values) {
  reader.values(values);
  if (!all_finite(values)) throw ModelError("saved state: found a float that is not finite");
}

}  // namespace lintel
