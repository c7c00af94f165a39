// The sinusoidal table of positions (Vaswani et al. 2017, section 3.5).
#pragma once

#include <cstdint>
#include <span>

namespace lintel {

// One row of the table, out.size() even: out[2i] = sin(p * 10000^(-2i/d)), out[2i+1] = cos of the
// same. The angle is a double: rows far beyond 2^24 stay distinct.
void sinusoidal_position(std::int64_t position, std::span<float> out);

}  // namespace lintel
