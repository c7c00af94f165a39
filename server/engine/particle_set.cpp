#include "server/engine/particle_set.h"

#include <algorithm>
#include <cassert>

#include "model/core/random.h"
#include "model/core/tensor.h"

namespace lintel {
namespace {

// The draw of a position that decides which particles survive: far from those that draw its token.
constexpr std::uint32_t kDrawOfChoice = 1u << 31;

}  // namespace

ParticleSet::ParticleSet(int num_particles, std::int64_t most_values, std::uint64_t seed)
    : seed_(seed),
      values_(static_cast<std::size_t>(num_particles)),
      log2_weights_(values_.size(), 0.0),
      chosen_(values_.size()) {
  for (auto& values : values_) values.reserve(static_cast<std::size_t>(most_values));
  copies_.reserve(values_.size());
}

ParticleSet::~ParticleSet() {
  for (auto& values : values_) zero_memory(std::span(values));
}

std::size_t ParticleSet::bytes(int num_particles, std::int64_t most_values) {
  const std::size_t of_one = sizeof(std::vector<ParticleValue>) +
                             static_cast<std::size_t>(most_values) * sizeof(ParticleValue) +
                             sizeof(double) + sizeof(std::size_t) + sizeof(ParticleCopy);
  return sizeof(ParticleSet) + static_cast<std::size_t>(num_particles) * of_one;
}

void ParticleSet::append(int particle, const ParticleValue& value) {
  auto& values = values_[static_cast<std::size_t>(particle)];
  assert(values.size() < values.capacity());
  values.push_back(value);
}

std::span<const ParticleCopy> ParticleSet::resample(std::int64_t position) {
  copies_.clear();
  if (2.0 * effective_size(log2_weights_) >= static_cast<double>(values_.size())) return {};
  choose(position, chosen_);
  log2_evidence_ += log2_mean(log2_weights_);
  std::ranges::fill(log2_weights_, 0.0);
  list_copies(chosen_, copies_);
  for (const auto& [to, from] : copies_) {
    assert(values_[to].size() == values_[from].size());
    std::copy(values_[from].begin() + static_cast<std::ptrdiff_t>(agreed_), values_[from].end(),
              values_[to].begin() + static_cast<std::ptrdiff_t>(agreed_));
  }
  return copies_;
}

std::size_t ParticleSet::agreed() {
  const std::vector<ParticleValue>& first = values_.front();
  const auto have = [&](std::size_t i) {
    return std::ranges::all_of(values_, [&](const std::vector<ParticleValue>& values) {
      return i < values.size() && values[i] == first[i];
    });
  };
  while (agreed_ < first.size() && have(agreed_)) ++agreed_;
  return agreed_;
}

void ParticleSet::choose(std::int64_t position, std::span<std::size_t> chosen) const {
  choose_systematically(log2_weights_, DrawSource{seed_, position}.uniform(kDrawOfChoice), chosen);
}

}  // namespace lintel
