// SPDX-License-Identifier: Apache-2.0
#include "server/engine/particle_filter.h"

#include <algorithm>

namespace lintel {
namespace {

// New tokens that a run may take.
std::int64_t most_new_tokens(const RequestContext& context) {
  const std::int64_t most = context.request.max_new_tokens;
  if (context.max_tokens == 0) return most;
  return std::min(most, context.max_tokens - context.prompt_end());
}

TokenEvent event_of(const ParticleToken& entry, std::int64_t position) {
  TokenEvent event;
  event.position = position;
  event.token = entry.token;
  event.source = entry.source;
  if (entry.has_log2_prob) event.log2_prob = entry.log2_prob;
  return event;
}

}  // namespace

ParticleFilter::ParticleFilter(const RequestContext& context, std::vector<Sequence>& runs,
                               SampleEvents& outlet)
    : context_(context),
      runs_(runs),
      outlet_(outlet),
      first_position_(context.prompt_end()),
      particles_(context.request.particles, most_new_tokens(context), context.request.seed) {
  outlet_.keep_in(particles_);
}

void ParticleFilter::gather() {
  const bool all_there =
      std::ranges::all_of(runs_, [](const Sequence& run) { return run.waits() || run.finished(); });
  // Nothing is left to do once the runs have ended.
  if (!all_there || log2_evidence_) return;
  const std::int64_t position = runs_.front().num_tokens();
  if (runs_.front().finished()) return end(position);
  for (const auto& [to, from] : particles_.resample(position)) runs_[to].become(runs_[from]);
  for (Sequence& run : runs_) run.go_on();
  tell_agreed(particles_.agreed());
}

void ParticleFilter::end(std::int64_t position) {
  std::vector<std::size_t> chosen(static_cast<std::size_t>(context_.request.num_samples));
  particles_.choose(position, chosen);
  log2_evidence_ = particles_.log2_evidence();
  for (std::size_t sample = 0; sample < chosen.size(); ++sample) {
    const auto tokens = particles_.tokens(chosen[sample]);
    for (std::size_t i = told_; i < tokens.size(); ++i) {
      TokenEvent event = event_of(tokens[i], first_position_ + static_cast<std::int64_t>(i));
      event.sample = static_cast<int>(sample);
      outlet_.tell(event);
    }
  }
  told_ = particles_.tokens(0).size();
}

void ParticleFilter::tell_agreed(std::size_t end) {
  const auto tokens = particles_.tokens(0);
  for (; told_ < end; ++told_) {
    outlet_.tell_all(event_of(tokens[told_], first_position_ + static_cast<std::int64_t>(told_)));
  }
}

void ParticleFilter::complete(SampleResult& result) const {
  result.generated_tokens = static_cast<std::int64_t>(told_);
  result.given_tokens = std::ranges::count(particles_.tokens(0).first(told_), TokenSource::kGiven,
                                           &ParticleToken::source);
  result.position = first_position_ + result.generated_tokens;
  result.log2_evidence = log2_evidence_;
}

}  // namespace lintel
