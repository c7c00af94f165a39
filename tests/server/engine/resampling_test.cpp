// SPDX-License-Identifier: Apache-2.0
// Which particles survive: shares, order, and the sums of weights of any size.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/engine/particle_set.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::vector<double> logs_of(const std::vector<double>& weights) {
  std::vector<double> logs;
  for (const double weight : weights) logs.push_back(std::log2(weight));
  return logs;
}

std::vector<std::size_t> chosen_by(const std::vector<double>& log2_weights, double uniform,
                                   std::size_t count) {
  std::vector<std::size_t> chosen(count);
  choose_systematically(log2_weights, uniform, chosen);
  return chosen;
}

TEST_CASE("the effective size is the number of equal weights, and 1 of one that has them all") {
  CHECK(effective_size(logs_of({0.2, 0.2, 0.2, 0.2, 0.2})) == Approx(5));
  CHECK(effective_size(logs_of({4.0, 1e-300, 1e-300})) == Approx(1));
  CHECK(effective_size(logs_of({3.0, 1.0})) == Approx(16.0 / 10.0));
  CHECK(effective_size(std::vector<double>{-7.0}) == Approx(1));
}

TEST_CASE("weights of any size are compared, and have a mean") {
  const std::vector<double> weights = logs_of({1.0, 2.0, 5.0});
  CHECK(log2_mean(weights) == Approx(std::log2(8.0 / 3.0)));
  for (const double shift : {-1e5, -2000.0, 3000.0}) {
    std::vector<double> shifted = weights;
    for (double& weight : shifted) weight += shift;
    CHECK(effective_size(shifted) == Approx(effective_size(weights)));
    CHECK(log2_mean(shifted) == Approx(log2_mean(weights) + shift));
    CHECK(chosen_by(shifted, 0.4, 9) == chosen_by(weights, 0.4, 9));
  }
  CHECK(chosen_by({-1e9, -5.0, -1e9}, 0.999, 3) == std::vector<std::size_t>{1, 1, 1});
}

TEST_CASE("a particle of share s is chosen s n times, rounded up or down, and s n in the mean") {
  const std::vector<double> weights = {0.05, 0.4, 0.0125, 0.2375, 0.3};
  constexpr std::size_t kChosen = 7;
  constexpr int kUniforms = 4000;
  std::vector<double> mean(weights.size(), 0.0);
  for (int i = 0; i < kUniforms; ++i) {
    const auto chosen = chosen_by(logs_of(weights), (i + 0.5) / kUniforms, kChosen);
    REQUIRE(std::ranges::is_sorted(chosen));
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const auto times = static_cast<double>(std::ranges::count(chosen, p));
      const double due = weights[p] * kChosen;
      REQUIRE(times >= std::floor(due - 1e-9));
      REQUIRE(times <= std::ceil(due + 1e-9));
      mean[p] += times / kUniforms;
    }
  }
  for (std::size_t p = 0; p < weights.size(); ++p) {
    CHECK(mean[p] == Approx(weights[p] * kChosen).margin(1e-3));
  }
}

TEST_CASE("a chosen particle stays in its place, and copies take the places of the others") {
  std::vector<ParticleCopy> copies;
  list_copies(std::vector<std::size_t>{0, 2, 2, 2, 4}, copies);
  CHECK(copies == std::vector<ParticleCopy>{{1, 2}, {3, 2}});
  list_copies(std::vector<std::size_t>{0, 1, 2}, copies);
  CHECK(copies.empty());
  list_copies(std::vector<std::size_t>{3, 3, 3, 3}, copies);
  CHECK(copies == std::vector<ParticleCopy>{{0, 3}, {1, 3}, {2, 3}});

  // Every chosen particle is there afterwards, as often as it was chosen.
  for (std::size_t code = 0; code < 3125; ++code) {
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0, rest = code; i < 5; ++i, rest /= 5) chosen.push_back(rest % 5);
    std::ranges::sort(chosen);
    list_copies(chosen, copies);
    std::vector<std::size_t> places(5);
    std::iota(places.begin(), places.end(), std::size_t{0});
    for (const auto& [to, from] : copies) {
      REQUIRE(std::ranges::count(chosen, to) == 0);
      places[to] = places[from];
    }
    std::ranges::sort(places);
    REQUIRE(places == chosen);
  }
}

ParticleToken drawn(std::int32_t token) { return {.token = token}; }

TEST_CASE("particles are resampled below half their number, and then weigh the same") {
  ParticleSet set(4, 10, /*seed=*/1);
  for (int p = 0; p < 4; ++p) set.append(p, drawn(p));
  set.weigh(0, -1.0);  // of 4 all but this one weigh the same: worth more than 2
  CHECK(set.resample(1).empty());
  CHECK(set.agreed() == 0);
  const double before = set.log2_evidence();
  CHECK(before == Approx(std::log2(3.5 / 4)));
  for (int p : {0, 1, 3}) set.weigh(p, -40.0);
  const auto copies = set.resample(2);
  CHECK(std::vector(copies.begin(), copies.end()) ==
        std::vector<ParticleCopy>{{0, 2}, {1, 2}, {3, 2}});
  CHECK(set.log2_evidence() == Approx(-2.0));
  CHECK(set.agreed() == 1);
  CHECK(set.tokens(3)[0] == drawn(2));
  CHECK(set.resample(3).empty());  // they weigh the same
}

TEST_CASE("particles agree as far as all have the same tokens, with any weights") {
  ParticleSet set(3, 5, 1);
  CHECK(set.agreed() == 0);
  for (const std::int32_t token : {7, 8}) {
    for (int p = 0; p < 3; ++p) set.append(p, drawn(token));
  }
  CHECK(set.agreed() == 2);
  set.append(0, drawn(9));
  CHECK(set.agreed() == 2);  // the others have not come so far
  set.append(1, drawn(9));
  set.append(2, drawn(1));
  CHECK(set.agreed() == 2);
}

TEST_CASE("which particles are chosen is a function of seed and position") {
  const auto choice = [](std::uint64_t seed, std::int64_t position) {
    ParticleSet set(64, 1, seed);
    for (int p = 0; p < 64; ++p) set.weigh(p, p % 7);
    std::vector<std::size_t> chosen(5);
    set.choose(position, chosen);
    return chosen;
  };
  CHECK(choice(1, 10) == choice(1, 10));
  CHECK(choice(1, 10) != choice(2, 10));
  CHECK(choice(1, 10) != choice(1, 11));
}

}  // namespace
}  // namespace lintel::testing
