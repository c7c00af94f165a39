// SPDX-License-Identifier: Apache-2.0
#include "server/engine/particle_set.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/core/random.h"
#include "model/core/tensor.h"

namespace lintel {
namespace {

// The weight divided by the largest one, so that none overflows and one is 1.
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

namespace {

// The draw of a position that decides which particles survive: far from those that draw its token.
constexpr std::uint32_t kDrawOfChoice = 1u << 31;

}  // namespace

ParticleSet::ParticleSet(int num_particles, std::int64_t most_tokens, std::uint64_t seed)
    : seed_(seed),
      tokens_(static_cast<std::size_t>(num_particles)),
      log2_weights_(tokens_.size(), 0.0),
      chosen_(tokens_.size()) {
  for (auto& tokens : tokens_) tokens.reserve(static_cast<std::size_t>(most_tokens));
  copies_.reserve(tokens_.size());
}

ParticleSet::~ParticleSet() {
  for (auto& tokens : tokens_) zero_memory(std::span(tokens));
}

std::size_t ParticleSet::bytes(int num_particles, std::int64_t most_tokens) {
  const std::size_t of_one = sizeof(std::vector<ParticleToken>) +
                             static_cast<std::size_t>(most_tokens) * sizeof(ParticleToken) +
                             sizeof(double) + sizeof(std::size_t) + sizeof(ParticleCopy);
  return sizeof(ParticleSet) + static_cast<std::size_t>(num_particles) * of_one;
}

void ParticleSet::append(int particle, const ParticleToken& token) {
  auto& tokens = tokens_[static_cast<std::size_t>(particle)];
  assert(tokens.size() < tokens.capacity());
  tokens.push_back(token);
}

std::span<const ParticleCopy> ParticleSet::resample(std::int64_t position) {
  copies_.clear();
  if (2.0 * effective_size(log2_weights_) >= static_cast<double>(tokens_.size())) return {};
  choose(position, chosen_);
  log2_evidence_ += log2_mean(log2_weights_);
  std::ranges::fill(log2_weights_, 0.0);
  list_copies(chosen_, copies_);
  for (const auto& [to, from] : copies_) {
    assert(tokens_[to].size() == tokens_[from].size());
    std::copy(tokens_[from].begin() + static_cast<std::ptrdiff_t>(agreed_), tokens_[from].end(),
              tokens_[to].begin() + static_cast<std::ptrdiff_t>(agreed_));
  }
  return copies_;
}

std::size_t ParticleSet::agreed() {
  const std::vector<ParticleToken>& first = tokens_.front();
  const auto have = [&](std::size_t i) {
    return std::ranges::all_of(tokens_, [&](const std::vector<ParticleToken>& tokens) {
      return i < tokens.size() && tokens[i] == first[i];
    });
  };
  while (agreed_ < first.size() && have(agreed_)) ++agreed_;
  return agreed_;
}

void ParticleSet::choose(std::int64_t position, std::span<std::size_t> chosen) const {
  choose_systematically(log2_weights_, DrawSource{seed_, position}.uniform(kDrawOfChoice), chosen);
}

}  // namespace lintel
