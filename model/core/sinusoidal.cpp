#include "model/core/sinusoidal.h"

#include <cassert>
#include <cmath>

namespace lintel {

void sinusoidal_position(std::int64_t position, std::span<float> out) {
  assert(out.size() % 2 == 0);
  const double d = static_cast<double>(out.size());
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / d);
    const double angle = static_cast<double>(position) * frequency;
    out[i] = static_cast<float>(std::sin(angle));
    out[i + 1] = static_cast<float>(std::cos(angle));
  }
}

}  // namespace lintel
