// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include "bench/fleet_model.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace lintel::bench {
namespace {

constexpr std::size_t kHashes = 100'000;  // for counting moves
constexpr int kChoices = 4;               // of replicas that go
constexpr double kMostOfACore = 0.5;

std::uint64_t xxh64(const std::string& text, std::uint64_t seed = 0) {
  return XXH64(text.data(), text.size(), seed);
}

class RingHash final : public Placement {
 public:
  RingHash(const ReplicaNames& replicas, std::size_t least, std::size_t most)
      : replicas_(replicas.size()) {
    const std::size_t count = replicas.size();
    const std::size_t total = std::min((least + count - 1) / count * count, most);
    for (std::uint32_t replica = 0; replica < count; ++replica) {
      const std::size_t until = (total * (replica + 1) + count - 1) / count;
      for (int i = 0; ring_.size() < until; ++i) {
        ring_.push_back({xxh64(replicas[replica] + "_" + std::to_string(i)), replica});
      }
    }
    std::ranges::sort(ring_);
  }

  std::uint32_t replica_of(std::uint64_t hash) const override {
    const auto entry = std::ranges::lower_bound(ring_, Entry{hash, 0});
    return (entry == ring_.end() ? ring_.front() : *entry).replica;
  }

  std::vector<double> shares() const override {
    std::vector<double> shares(replicas_);
    std::uint64_t last = ring_.back().hash;
    for (const Entry& entry : ring_) {
      shares[entry.replica] +=
          std::ldexp(static_cast<double>(entry.hash - last), -64);  // modulo 2^64
      last = entry.hash;
    }
    if (ring_.size() == 1) shares[ring_.front().replica] = 1;
    return shares;
  }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t replica;
    auto operator<=>(const Entry&) const = default;
  };
  std::size_t replicas_;
  std::vector<Entry> ring_;  // by hash
};

class Maglev final : public Placement {
 public:
  Maglev(const ReplicaNames& replicas, std::size_t places)
      : replicas_(replicas.size()), table_(places, kNobody) {
    struct Order {
      std::uint64_t next, skip;
    };
    std::vector<Order> orders;
    for (const std::string& name : replicas) {
      orders.push_back({xxh64(name) % places, xxh64(name, 1) % (places - 1) + 1});
    }
    for (std::size_t filled = 0; filled < places;) {
      for (std::uint32_t replica = 0; replica < replicas.size() && filled < places; ++replica) {
        Order& order = orders[replica];
        while (table_[order.next] != kNobody) order.next = (order.next + order.skip) % places;
        table_[order.next] = replica;
        ++filled;
      }
    }
  }

  std::uint32_t replica_of(std::uint64_t hash) const override {
    return table_[hash % table_.size()];
  }

  std::vector<double> shares() const override {
    std::vector<double> shares(replicas_);
    for (const std::uint32_t replica : table_) {
      shares[replica] += 1.0 / static_cast<double>(table_.size());
    }
    return shares;
  }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  std::size_t replicas_;
  std::vector<std::uint32_t> table_;
};

}  // namespace

ReplicaNames replica_names(std::size_t count) {
  ReplicaNames names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back("10." + std::to_string(i / 65'536) + "." + std::to_string(i / 256 % 256) + "." +
                    std::to_string(i % 256) + ":50051");
  }
  return names;
}

std::unique_ptr<Placement> ring_hash(const ReplicaNames& replicas, std::size_t least,
                                     std::size_t most) {
  return std::make_unique<RingHash>(replicas, least, most);
}

std::unique_ptr<Placement> maglev(const ReplicaNames& replicas, std::size_t places) {
  return std::make_unique<Maglev>(replicas, places);
}

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

StoreLoad store_load(const FleetPlan& plan, StoreLevel level) {
  StoreLoad load;
  load.keys = plan.idle_sessions * plan.keys_per_session;
  load.bytes = plan.idle_sessions * plan.session_bytes;
  load.running = plan.calls_per_second * plan.call_seconds;
  // Seconds between writes of one running call.
  double between = plan.lease_seconds / 3;
  if (level == StoreLevel::kInput) between = std::min(plan.tokens_seconds, between);
  if (level == StoreLevel::kToken) between = plan.commit_seconds;
  const double per_call = plan.scripts_per_call - (level == StoreLevel::kCall ? 1 : 0);
  load.scripts_per_second = per_call * plan.calls_per_second + load.running / between;
  const double by_memory = load.bytes / (plan.master_bytes * plan.fill);
  const double by_core = load.scripts_per_second * plan.script_seconds / kMostOfACore;
  load.masters = std::max<std::int64_t>(1, std::llround(std::ceil(std::max(by_memory, by_core))));
  const double masters = static_cast<double>(load.masters);
  load.bytes_per_master = load.bytes / masters;
  load.scripts_per_master = load.scripts_per_second / masters;
  load.core_share = load.scripts_per_master * plan.script_seconds;
  return load;
}

}  // namespace lintel::bench
