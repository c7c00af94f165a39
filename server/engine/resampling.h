// Resampling: the worth of a set of weighted particles, and which of them survive.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lintel {

// Weights are given as base-2 logarithms, each finite, not none; only their differences decide
// which survive. Double arithmetic in the order of the particles: the same bits for the same
// weights.

// (sum w)^2 / sum w^2, from 1 (one particle has all the weight) to their number (all the same):
// Kong, Liu and Wong 1994, "Sequential imputations and Bayesian missing data problems".
double effective_size(std::span<const double> log2_weights);

// log2 of the mean weight.
double log2_mean(std::span<const double> log2_weights);

// Systematic resampling (Kitagawa 1996, "Monte Carlo filter and smoother", appendix): where the
// cumulated weights pass (uniform + k) / chosen.size() of their sum, for k = 0, 1, ... So a
// particle of share s is chosen floor(s n) or ceil(s n) times, and s n times in the mean over
// `uniform`. uniform: in [0, 1). chosen: indices of particles, ascending.
void choose_systematically(std::span<const double> log2_weights, double uniform,
                           std::span<std::size_t> chosen);

// A particle that continues as a copy of another.
struct ParticleCopy {
  std::size_t to = 0;
  std::size_t from = 0;
  bool operator==(const ParticleCopy&) const = default;
};

// What turns particles into those chosen: who is chosen stays where it is, and who is chosen more
// than once takes the places of those who are not. copies: overwritten. REQUIRES: `chosen` ascends,
// and is as many as there are particles.
void list_copies(std::span<const std::size_t> chosen, std::vector<ParticleCopy>& copies);

}  // namespace lintel
