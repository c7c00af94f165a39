#include "bench/placement.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>

namespace lintel::bench {
namespace {

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

}  // namespace lintel::bench
