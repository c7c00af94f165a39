// The cost of a whole sequence from its cost at some positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lintel::bench {

// `count` positions spread evenly over 0 .. steps - 1, both ends among them; all of them where
// there are no more. REQUIRES: steps >= 1, count >= 2.
std::vector<std::int64_t> spread_positions(std::int64_t steps, int count);

// The sum of cost(p) over p = 0 .. steps - 1, where cost is the straight line between two measured
// positions, and beyond the outermost as there. Exact where the cost is linear in the position; of
// a quadratic cost c p^2 it is above the truth by a share of at most 1/(2 (count - 1)^2). REQUIRES:
// positions increasing, not empty, as many as costs.
double integrate(std::span<const std::int64_t> positions, std::span<const double> costs,
                 std::int64_t steps);

}  // namespace lintel::bench
