// How evenly sessions are spread over replicas, and which of them meet another one when replicas
// come and go.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/placement.h"

namespace lintel::bench {

using MakePlacement = std::function<std::unique_ptr<Placement>(const ReplicaNames&)>;

struct Spread {
  double fullest_share = 0;    // of all hashes, by the mean: 1 is even
  double fullest_running = 0;  // the same, of running sessions, each at a place drawn by chance
};
// Of `running` sessions that are drawn from `seed`.
Spread spread_of(const Placement& placement, std::size_t running, std::uint64_t seed);

// The share of sessions, 0 to 1, whose next call goes to another replica than the last, after
// `change` replicas have gone (the mean of some choices of them, by `seed`). As many coming is the
// same, seen from the other side.
double moved_share(const ReplicaNames& replicas, const MakePlacement& make, std::size_t change,
                   std::uint64_t seed);

}  // namespace lintel::bench
