// SPDX-License-Identifier: Apache-2.0
#include "tests/server/engine/naive_filter.h"

#include <algorithm>
#include <optional>
#include <span>

#include "server/engine/particle_set.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::optional<std::int32_t> given_at(const GenerationRequest& request, std::int64_t position) {
  for (const GivenToken& given : request.given) {
    if (given.position == position) return given.token;
  }
  return std::nullopt;
}

}  // namespace

Filtered filter_naively(const Transformer& model, const GenerationRequest& request) {
  const auto count = static_cast<std::size_t>(request.particles);
  Workspace workspace = model.new_workspace(1);
  SamplingScratch scratch;
  const auto feed = [&](SequenceState& sequence) {
    const BatchRow row{*sequence.pending, &sequence, /*wants_output=*/true};
    sequence.pending.reset();
    const auto output = model.step(std::span(&row, 1), workspace).row(0);
    return std::vector<float>(output.begin(), output.end());
  };
  const auto take = [](SequenceState& sequence, std::int32_t token) {
    sequence.pending = token;
    if (!sequence.counts.empty()) sequence.counts.add(token);
  };
  SequenceState first = model.new_sequence();
  for (const std::int32_t token : request.prompt) {
    if (first.pending) feed(first);
    take(first, token);
  }
  std::vector<SequenceState> particles;
  for (std::size_t i = 0; i < count; ++i) particles.push_back(first.clone());
  std::vector<std::vector<RecordedToken>> paths(count);
  std::vector<double> weights(count, 0.0);
  std::optional<ParticleSet> choices;  // for the numbers it draws
  Filtered result;
  std::int64_t position = static_cast<std::int64_t>(request.prompt.size());
  std::int64_t end = position + request.max_new_tokens;
  const std::int64_t most = model.config().max_tokens();
  if (most != 0) end = std::min(end, most);
  const auto renew_choices = [&] {
    choices.emplace(request.particles, 0, request.seed);
    for (std::size_t i = 0; i < count; ++i) choices->weigh(static_cast<int>(i), weights[i]);
  };
  for (; position < end; ++position) {
    const auto given = given_at(request, position);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<float> output;
      if (particles[i].pending) output = feed(particles[i]);
      RecordedToken next{position, given.value_or(0), TokenSource::kGiven, std::nullopt, {}};
      if (!given) {
        next.source = TokenSource::kSampled;
        next.token = model.head().sample(output, request.sampling, particles[i].counts.all(), {},
                                         {request.seed + i, position}, scratch);
      }
      if (!output.empty()) {
        const double log2_prob = model.head().log2_prob(output, next.token);
        if (request.log2_probs) next.log2_prob = static_cast<float>(log2_prob);
        if (given) weights[i] += log2_prob;
      }
      take(particles[i], next.token);
      paths[i].push_back(next);
    }
    if (!given || position + 1 == end || given_at(request, position + 1)) continue;
    if (2 * effective_size(weights) >= static_cast<double>(count)) continue;
    renew_choices();
    std::vector<std::size_t> chosen(count);
    choices->choose(position + 1, chosen);
    result.log2_evidence += log2_mean(weights);
    std::ranges::fill(weights, 0.0);
    // Particles that were not chosen, in order, become those that are chosen again, in order.
    std::size_t free = 0;
    for (std::size_t k = 1; k < count; ++k) {
      if (chosen[k] != chosen[k - 1]) continue;
      while (std::ranges::count(chosen, free) > 0) ++free;
      particles[free] = particles[chosen[k]].clone();
      paths[free] = paths[chosen[k]];
      ++free;
    }
  }
  renew_choices();
  std::vector<std::size_t> chosen(static_cast<std::size_t>(request.num_samples));
  choices->choose(position, chosen);
  for (const std::size_t i : chosen) result.samples.push_back(paths[i]);
  result.log2_evidence += log2_mean(weights);
  return result;
}

std::vector<GenerationRequest> particle_requests(const Transformer& model) {
  const bool is_image = model.config().modality == ModalityKind::kImage;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request;
    request.prompt = {3 + i, 17, 5};
    if (i % 3 == 1) request.prompt = {2};
    request.max_new_tokens = i == 3 ? 9 : 26;
    request.seed = static_cast<std::uint64_t>(100 + i);
    request.particles = i == 5 ? 2 : 3 + 4 * (i % 3);
    request.num_samples = i % 2 == 0 ? 1 : 2;
    request.log2_probs = i % 4 != 2;
    if (i % 4 == 1) request.sampling.temperature = 0.7f;
    if (i % 4 == 3 && !is_image) request.sampling.frequency_penalty = 0.4f;
    const auto from = static_cast<std::int64_t>(request.prompt.size());
    for (std::int64_t position = from; position < 29; ++position) {
      const bool is_given = i == 0   ? position % 2 == 0  // one by one
                            : i == 1 ? position % 7 < 3   // runs
                            : i == 2 ? position >= 15     // all at the end
                            : i == 4 ? position < 8 || position == 20
                            : i == 6 ? false
                                     : (position * 7 + i) % 5 < 2;
      if (is_given) {
        request.given.push_back({position, static_cast<std::int32_t>(position * 13 % 50)});
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void require_twin(const RecordingSink& sink, const Filtered& twin) {
  REQUIRE(sink.outcome == RequestOutcome::kDone);
  REQUIRE(sink.out_of_order == 0);
  REQUIRE(sink.recorded == twin.samples);
  for (const auto& result : sink.results) {
    REQUIRE(result);
    REQUIRE(result->log2_evidence == twin.log2_evidence);
    REQUIRE(result->generated_tokens == static_cast<std::int64_t>(twin.samples[0].size()));
  }
}

}  // namespace lintel::testing
