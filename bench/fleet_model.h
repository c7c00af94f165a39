// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lintel::bench {

// Placements: the replica to which a load balancer sends a session's calls.

// A balancer hashes the names of the replicas, their addresses.
using ReplicaNames = std::vector<std::string>;
// "10.0.0.7:50051" and so on.
ReplicaNames replica_names(std::size_t count);

class Placement {
 public:
  virtual ~Placement() = default;
  // Index of the replica for a call with this hash of its `lintel-affinity`.
  virtual std::uint32_t replica_of(std::uint64_t hash) const = 0;
  // The share of all hashes that each replica gets; together 1.
  virtual std::vector<double> shares() const = 0;
};

// A ring as gRPC (A42) and Envoy have it: entries on a ring, XXH64 of "ADDRESS_I"; a call goes to
// the next one. All replicas get as many, together at least `least`; where that is more than
// `most`, that many, and some replicas have one more. REQUIRES: replicas, least <= most.
std::unique_ptr<Placement> ring_hash(const ReplicaNames& replicas, std::size_t least,
                                     std::size_t most);
// A table as Envoy has it, with a prime number of places, which replicas fill in turn, each by an
// order of its own. REQUIRES: replicas, fewer than places.
std::unique_ptr<Placement> maglev(const ReplicaNames& replicas, std::size_t places = 65'537);

// Spread: the evenness of sessions over replicas, and the share of them that changes its replica
// when replicas come and go.

using MakePlacement = std::function<std::unique_ptr<Placement>(const ReplicaNames&)>;

struct Spread {
  double fullest_share = 0;    // of all hashes, by the mean: 1 is even
  double fullest_running = 0;  // the same, of running sessions, each at a place drawn by chance
};
// The spread of `running` sessions that are drawn from `seed`.
Spread spread_of(const Placement& placement, std::size_t running, std::uint64_t seed);

// The share of sessions, 0 to 1, whose next call goes to another replica than the last, after
// `change` replicas have gone (the mean of some choices of them, by `seed`). As many coming is the
// same, seen from the other side.
double moved_share(const ReplicaNames& replicas, const MakePlacement& make, std::size_t change,
                   std::uint64_t seed);

// The load of a fleet on its shared store: arithmetic, from measured costs.

enum class StoreLevel { kCall, kInput, kToken };  // durability: docs/session_storage.md

struct FleetPlan {
  double idle_sessions = 50e6;
  double calls_per_second = 100e3;
  double call_seconds = 0.64;   // duration of a call
  double session_bytes = 2900;  // of the store, for a session of 784 tokens without its state
  double keys_per_session = 2;
  double scripts_per_call = 3;    // claim, begin and end; kCall writes no begin
  double tokens_seconds = 1;      // kInput: between writes of a running call's tokens
  double commit_seconds = 0.005;  // kToken: the same
  double lease_seconds = 10;      // a call that writes nothing renews every third of it
  double script_seconds = 28e-6;  // of a master's core, for one script (docs/multi_server.md)
  double master_bytes = 8e9;      // memory of a master
  double fill = 0.8;              // of it that may be in use
};

struct StoreLoad {
  double keys = 0, bytes = 0;  // of all masters
  std::int64_t masters = 0;    // by memory, and so that none's core is more than half busy
  double bytes_per_master = 0;
  double running = 0;  // calls at a time
  double scripts_per_second = 0, scripts_per_master = 0;
  double core_share = 0;  // of one core, on each master; 1 is a full one
};

// The load at this level.
StoreLoad store_load(const FleetPlan& plan, StoreLevel level);

}  // namespace lintel::bench
