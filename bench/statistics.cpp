#include "bench/statistics.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace lintel::bench {

double quantile(std::vector<double> values, double share) {
  assert(!values.empty() && share >= 0 && share <= 1);
  std::ranges::sort(values);
  const double rank = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], rank - static_cast<double>(below));
}

Summary summarize(std::vector<double> values) {
  assert(!values.empty());
  const auto [least, most] = std::ranges::minmax(values);
  const int count = static_cast<int>(values.size());
  return {quantile(std::move(values), 0.5), least, most, count};
}

Summary quotient(double factor, const Summary& measured) {
  assert(factor > 0 && measured.least > 0);
  return {factor / measured.median, factor / measured.most, factor / measured.least,
          measured.count};
}

}  // namespace lintel::bench
