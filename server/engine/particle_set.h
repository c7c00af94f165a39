// SPDX-License-Identifier: Apache-2.0
// ParticleSet: copies of one sequence that draw different tokens, weighed by what they make of the
// tokens that are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/sessions/session_history.h"

namespace lintel {

// Resampling: the worth of a set of weighted particles, and which of them survive.

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

// Lists the copies that turn particles into the chosen ones: a chosen particle stays in its place,
// and one chosen more than once also takes places of those not chosen. copies: overwritten.
// REQUIRES: `chosen` ascends, and has as many items as there are particles.
void list_copies(std::span<const std::size_t> chosen, std::vector<ParticleCopy>& copies);

// A token that a particle has taken.
struct ParticleToken {
  std::int32_t token = 0;
  float log2_prob = 0;
  bool has_log2_prob = false;
  TokenSource source = TokenSource::kSampled;
  bool operator==(const ParticleToken&) const = default;
};

// A particle filter in the sense of Gordon, Salmond and Smith 1993, without the states: weights,
// and the tokens that lead to each particle. Which particles survive, and which are returned in the
// end, is a function of the weights and the seed.
//
// Allocates when made. Zeroes what it held. Used by one thread at a time.
class ParticleSet {
 public:
  // most_tokens: that a particle takes.
  ParticleSet(int num_particles, std::int64_t most_tokens, std::uint64_t seed);
  ~ParticleSet();
  ParticleSet(const ParticleSet&) = delete;
  ParticleSet& operator=(const ParticleSet&) = delete;

  // Bytes of such a set.
  static std::size_t bytes(int num_particles, std::int64_t most_tokens);

  // The particle's next token.
  void append(int particle, const ParticleToken& token);
  // Weighs the particle by the probability that it gave to a known token.
  void weigh(int particle, double log2_prob) {
    log2_weights_[static_cast<std::size_t>(particle)] += log2_prob;
  }

  // Copies of particles take the places of others, where the weights are worth less than half of
  // them; then all weigh the same again. Returns the copies, valid until the next call; their
  // tokens are copied already. REQUIRES: all have as many tokens. position: of the next one in the
  // sequence; each is asked for once.
  std::span<const ParticleCopy> resample(std::int64_t position);

  // Tokens from the first that are the same in all particles, and so in all that is drawn after
  // them: 0 .. their number. Never gets less.
  std::size_t agreed();

  // Chooses a particle for each place in `chosen`, by their weights. `position` as in resample().
  void choose(std::int64_t position, std::span<std::size_t> chosen) const;

  std::span<const ParticleToken> tokens(std::size_t particle) const { return tokens_[particle]; }

  // log2 of the estimate of the probability of the known tokens so far: the product, over the times
  // in between which weights were gathered, of their means. Its mean over seeds (of the estimate,
  // not of its logarithm) is that probability (Del Moral 2004, "Feynman-Kac Formulae",
  // theorem 7.4.2).
  double log2_evidence() const { return log2_evidence_ + log2_mean(log2_weights_); }

 private:
  const std::uint64_t seed_;
  std::vector<std::vector<ParticleToken>> tokens_;  // [particle][token]
  std::vector<double> log2_weights_;                // since they were last the same
  double log2_evidence_ = 0;                        // of what came before
  std::size_t agreed_ = 0;
  std::vector<std::size_t> chosen_;  // memory of resample()
  std::vector<ParticleCopy> copies_;
};

}  // namespace lintel
