// Which replica a load balancer sends a session's calls to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lintel::bench {

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

// As gRPC (A42) and Envoy have it: entries on a ring, XXH64 of "ADDRESS_I"; a call goes to the next
// one. All replicas get as many, together at least `least`; where that is more than `most`, that
// many, and some replicas have one more. REQUIRES: replicas, least <= most.
std::unique_ptr<Placement> ring_hash(const ReplicaNames& replicas, std::size_t least,
                                     std::size_t most);
// As Envoy has it: a table of a prime number of places, which replicas fill in turn, each by an
// order of its own. REQUIRES: replicas, fewer than places.
std::unique_ptr<Placement> maglev(const ReplicaNames& replicas, std::size_t places = 65'537);

}  // namespace lintel::bench
