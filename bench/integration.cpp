#include "bench/integration.h"

#include <cassert>
#include <cmath>

namespace lintel::bench {

std::vector<std::int64_t> spread_positions(std::int64_t steps, int count) {
  assert(steps >= 1 && count >= 2);
  std::vector<std::int64_t> positions;
  if (steps <= count) {
    for (std::int64_t p = 0; p < steps; ++p) positions.push_back(p);
    return positions;
  }
  for (int i = 0; i < count; ++i) positions.push_back((steps - 1) * i / (count - 1));
  return positions;
}

double integrate(std::span<const std::int64_t> positions, std::span<const double> costs,
                 std::int64_t steps) {
  assert(!positions.empty() && positions.size() == costs.size());
  double sum = 0;
  std::size_t next = 0;  // the first measured position that is not before p
  for (std::int64_t p = 0; p < steps; ++p) {
    while (next < positions.size() && positions[next] < p) ++next;
    if (next == 0) {
      sum += costs.front();
    } else if (next == positions.size()) {
      sum += costs.back();
    } else {
      const auto width = static_cast<double>(positions[next] - positions[next - 1]);
      const double share = static_cast<double>(p - positions[next - 1]) / width;
      sum += std::lerp(costs[next - 1], costs[next], share);
    }
  }
  return sum;
}

}  // namespace lintel::bench
