// SPDX-License-Identifier: Apache-2.0
// ParticleFilter: the samples of a request whose tokens are drawn with an eye on what comes later.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/engine/particle_set.h"
#include "server/engine/request.h"
#include "server/engine/sequence.h"
#include "server/engine/token_sink.h"

namespace lintel {

// Sequential Monte Carlo over the positions of a sequence (Doucet and Johansen 2009, "A tutorial on
// particle filtering and smoothing", section 3). GenerationRequest::particles runs go through them,
// each drawing for itself and taking the known tokens, which weigh it. The target distribution is
//
//   prod over drawn positions of q(x_t | x_<t)  *  prod over known ones of p(x_t | x_<t),
//
// normalised, where q is what the request draws from (SamplingOptions) and p the model's
// distribution; at temperature 1 without filters q = p, and it is the model's distribution of the
// hidden tokens given all known ones.
//
// Between two known tokens nothing is drawn, so particles that were resampled there would only be
// fewer: it happens after each run of known tokens, when all runs have come to its end. So it
// depends neither on slices nor on the rest of the batch. A token is reported as soon as all
// particles agree in it and in those before it: every survivor has it.
class ParticleFilter {
 public:
  // The references outlive the filter; `runs` are forked, and have no new tokens yet. From now on
  // their tokens are kept here.
  ParticleFilter(const RequestContext& context, std::vector<Sequence>& runs, SampleEvents& outlet);

  // Called between two steps. If all runs wait for each other, resamples, and all may continue. If
  // all have ended, the samples are chosen and reported.
  void gather();

  // Makes of a run's result each sample's. One that was ended from outside has what was reported so
  // far.
  void complete(SampleResult& result) const;

 private:
  void end(std::int64_t position);
  // Reports the tokens that all particles share, up to number `end`.
  void tell_agreed(std::size_t end);

  const RequestContext& context_;
  std::vector<Sequence>& runs_;
  SampleEvents& outlet_;
  const std::int64_t first_position_;  // of the first new token
  ParticleSet particles_;
  std::size_t told_ = 0;                 // tokens of each particle
  std::optional<double> log2_evidence_;  // at the end
};

}  // namespace lintel
