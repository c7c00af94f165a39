#include "bench/moves.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace lintel::bench {
namespace {

constexpr std::size_t kHashes = 100'000;  // that moves are counted on
constexpr int kChoices = 4;               // of replicas that go

}  // namespace

Spread spread_of(const Placement& placement, std::size_t running, std::uint64_t seed) {
  const std::vector<double> shares = placement.shares();
  std::vector<std::size_t> sessions(shares.size());
  std::mt19937_64 draw(seed);
  for (std::size_t i = 0; i < running; ++i) ++sessions[placement.replica_of(draw())];
  const double replicas = static_cast<double>(shares.size());
  return {*std::ranges::max_element(shares) * replicas,
          static_cast<double>(*std::ranges::max_element(sessions)) * replicas /
              static_cast<double>(running)};
}

double moved_share(const ReplicaNames& replicas, const MakePlacement& make, std::size_t change,
                   std::uint64_t seed) {
  std::mt19937_64 draw(seed);
  const std::unique_ptr<Placement> before = make(replicas);
  std::size_t moved = 0;
  for (int choice = 0; choice < kChoices; ++choice) {
    std::vector<std::uint32_t> stay(replicas.size());  // indices, in order
    std::iota(stay.begin(), stay.end(), 0U);
    for (std::size_t i = 0; i < change; ++i) {
      stay.erase(stay.begin() + static_cast<std::ptrdiff_t>(draw() % stay.size()));
    }
    ReplicaNames names;
    for (const std::uint32_t index : stay) names.push_back(replicas[index]);
    const std::unique_ptr<Placement> after = make(names);
    for (std::size_t i = 0; i < kHashes; ++i) {
      const std::uint64_t hash = draw();
      moved += before->replica_of(hash) != stay[after->replica_of(hash)];
    }
  }
  return static_cast<double>(moved) / (static_cast<double>(kHashes) * kChoices);
}

}  // namespace lintel::bench
