// What is said of repeated measurements: the median and how far they lie apart.
#pragma once

#include <vector>

namespace lintel::bench {

struct Summary {
  double median = 0;
  double least = 0;
  double most = 0;
  int count = 0;  // of measurements

  bool operator==(const Summary&) const = default;
};

// REQUIRES: not empty, no NaN. The median of an even number is the mean of the middle two.
Summary summarize(std::vector<double> values);

// The value below or at which a share of `values` lies, by linear interpolation between ranks.
// REQUIRES: not empty; 0 <= share <= 1.
double quantile(std::vector<double> values, double share);

// Of a quantity that is factor / measured, e.g. images a second from seconds: the summary of the
// quotients. REQUIRES: factor > 0, all measured > 0.
Summary quotient(double factor, const Summary& measured);

}  // namespace lintel::bench
