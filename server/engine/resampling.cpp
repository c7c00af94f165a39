#include "server/engine/resampling.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace lintel {
namespace {

// Of the largest weight, so that none overflows and one is 1.
double share_of_largest(double log2_weight, double largest) {
  return std::exp2(log2_weight - largest);
}

}  // namespace

double effective_size(std::span<const double> log2_weights) {
  const double largest = *std::ranges::max_element(log2_weights);
  double sum = 0.0;
  double sum_of_squares = 0.0;
  for (const double log2_weight : log2_weights) {
    const double weight = share_of_largest(log2_weight, largest);
    sum += weight;
    sum_of_squares += weight * weight;
  }
  return sum * sum / sum_of_squares;
}

double log2_mean(std::span<const double> log2_weights) {
  const double largest = *std::ranges::max_element(log2_weights);
  double sum = 0.0;
  for (const double log2_weight : log2_weights) sum += share_of_largest(log2_weight, largest);
  return largest + std::log2(sum / static_cast<double>(log2_weights.size()));
}

void choose_systematically(std::span<const double> log2_weights, double uniform,
                           std::span<std::size_t> chosen) {
  const double largest = *std::ranges::max_element(log2_weights);
  double total = 0.0;
  for (const double log2_weight : log2_weights) total += share_of_largest(log2_weight, largest);
  const double stride = total / static_cast<double>(chosen.size());
  // The sum up to and including `particle`, added in the same order as the total.
  std::size_t particle = 0;
  double sum = share_of_largest(log2_weights[0], largest);
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    const double mark = (static_cast<double>(k) + uniform) * stride;
    while (sum <= mark && particle + 1 < log2_weights.size()) {
      sum += share_of_largest(log2_weights[++particle], largest);
    }
    chosen[k] = particle;
  }
}

void list_copies(std::span<const std::size_t> chosen, std::vector<ParticleCopy>& copies) {
  copies.clear();
  const std::size_t count = chosen.size();
  std::size_t next = 0;   // of those chosen
  std::size_t place = 0;  // the next that may be unchosen
  // Both run upwards: `is_free` is asked for ascending places, each once.
  std::size_t seen = 0;
  const auto is_free = [&](std::size_t particle) {
    while (seen < count && chosen[seen] < particle) ++seen;
    return seen == count || chosen[seen] != particle;
  };
  for (; next < count; ++next) {
    assert(next == 0 || chosen[next - 1] <= chosen[next]);
    if (next == 0 || chosen[next] != chosen[next - 1]) continue;  // it stays where it is
    while (!is_free(place)) ++place;
    copies.push_back({place++, chosen[next]});
  }
}

}  // namespace lintel
