// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/redis_cluster.h"

#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

constexpr std::uint16_t kSlots = 16384;

// Each node has an address of its own, so all may have the same ports. They lie below the range
// from which the system takes ports for clients, so that no connection of a client can hold one
// when a node starts; a server at 0.0.0.0 still can.
constexpr std::uint16_t kPort = 7001, kBusPort = 7002, kProxyPort = 7003, kBusProxyPort = 7004;
constexpr int kNetworkTrials = 5;  // of networks

// A network of its own for each cluster of each process: 253 x 253 of them, by process.
std::string next_network() {
  static std::atomic<unsigned> count{0};
  const unsigned number = static_cast<unsigned>(getpid()) * 7 + count++;
  return "127." + std::to_string(2 + number / 253 % 253) + "." + std::to_string(1 + number % 253) +
         ".";
}

// A line of "name:value" in what INFO and CLUSTER INFO answer.
std::string value_of(const std::string& info, const std::string& name) {
  const std::size_t at = info.find(name + ":");
  if (at == std::string::npos) return "";
  const std::size_t from = at + name.size() + 1;
  return info.substr(from, info.find('\r', from) - from);
}

void wait_for(const std::string& what, const std::function<bool()>& condition) {
  const bool came = eventually([&] {
    try {
      return condition();
    } catch (const std::exception&) {  // a node that is down or busy
      return false;
    }
  });
  if (!came) throw std::runtime_error("the cluster has not come to this in a minute: " + what);
}

// The id of the node that serves the slot, as one node sees it.
std::optional<std::string> owner_seen_by(RedisClient& node, std::uint16_t slot) {
  for (const RedisReply& range : node("CLUSTER SLOTS").elements) {
    if (range.elements[0].integer <= slot && slot <= range.elements[1].integer) {
      return range.elements[2].elements[2].text;
    }
  }
  return std::nullopt;
}

}  // namespace

RedisCluster::RedisCluster() : RedisCluster(Options()) {}

RedisCluster::RedisCluster(Options options)
    : options_(std::move(options)), network_(next_network()) {
  for (int trial = 1; nodes_.size() < options_.masters + options_.replicas;) {
    try {
      add_node(nodes_.size());
    } catch (const std::exception&) {  // another process's cluster may have this network
      if (trial++ == kNetworkTrials) throw;
      nodes_.clear();
      network_ = next_network();
    }
  }
  meet();
  share_slots();
  attach_replicas();
  wait_until_up();
}

void RedisCluster::add_node(std::size_t index) {
  Node node;
  RedisServer::Options options;
  options.address = network_ + std::to_string(index + 1);
  options.port = kPort;
  options.greeting = options_.greeting;
  const Endpoint bus{options.address, kBusPort};
  options.arguments = {"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
                       "--cluster-port", std::to_string(bus.port), "--cluster-node-timeout",
                       std::to_string(options_.node_timeout.count()),
                       // However long it was cut off, a replica may stand for its master.
                       "--cluster-replica-validity-factor", "0"};
  if (options_.has_proxies) {
    node.proxy = std::make_unique<TcpProxy>(Endpoint{options.address, kPort},
                                            Endpoint{options.address, kProxyPort});
    node.bus_proxy = std::make_unique<TcpProxy>(bus, Endpoint{options.address, kBusProxyPort});
    for (const std::string& word :
         {std::string("--cluster-announce-ip"), options.address,
          std::string("--cluster-announce-port"), std::to_string(node.proxy->endpoint().port),
          std::string("--cluster-announce-bus-port"),
          std::to_string(node.bus_proxy->endpoint().port)}) {
      options.arguments.push_back(word);
    }
  }
  options.arguments.insert(options.arguments.end(), options_.arguments.begin(),
                           options_.arguments.end());
  node.bus_port = node.bus_proxy ? node.bus_proxy->endpoint().port : bus.port;
  node.server = std::make_unique<RedisServer>(std::move(options));
  node.id = node.server->client()("CLUSTER MYID").text;
  nodes_.push_back(std::move(node));
}

void RedisCluster::meet() {
  for (std::size_t i = 0; i < size(); ++i) {
    client(i)("CLUSTER SET-CONFIG-EPOCH " + std::to_string(i + 1));
    if (i == 0) continue;
    const Endpoint other = endpoint(i);
    client(0)("CLUSTER MEET " + other.address + " " + std::to_string(other.port) + " " +
              std::to_string(nodes_[i].bus_port));
  }
  wait_for("all nodes have met", [&] {
    for (std::size_t i = 0; i < size(); ++i) {
      const std::string known = client(i)("CLUSTER NODES").text;
      for (const Node& node : nodes_) {
        if (known.find(node.id) == std::string::npos) return false;
      }
      if (known.find("handshake") != std::string::npos) return false;
    }
    return true;
  });
}

void RedisCluster::share_slots() {
  const std::size_t masters = options_.masters;
  for (std::size_t i = 0; i < masters; ++i) {
    client(i)("CLUSTER ADDSLOTSRANGE " + std::to_string(kSlots * i / masters) + " " +
              std::to_string(kSlots * (i + 1) / masters - 1));
  }
}

void RedisCluster::attach_replicas() {
  for (std::size_t i = options_.masters; i < size(); ++i) {
    client(i)("CLUSTER REPLICATE " + id((i - options_.masters) % options_.masters));
  }
}

Endpoint RedisCluster::endpoint(std::size_t index) const {
  const Node& node = nodes_[index];
  return node.proxy ? node.proxy->endpoint() : node.server->endpoint();
}

std::string RedisCluster::endpoints() const {
  std::string all;
  for (std::size_t i = 0; i < size(); ++i) all += (i == 0 ? "" : ",") + endpoint(i).text();
  return all;
}

std::size_t RedisCluster::index_of(std::string_view id) const {
  for (std::size_t i = 0; i < size(); ++i) {
    if (nodes_[i].id == id) return i;
  }
  throw std::runtime_error("no node of the cluster is " + std::string(id));
}

bool RedisCluster::is_master(std::size_t index) {
  return client(index)("ROLE").elements[0].text == "master";
}

std::size_t RedisCluster::master_of(std::size_t replica) {
  // "<id> <address> myself,slave <master> ..."
  std::istringstream lines(client(replica)("CLUSTER NODES").text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("myself") == std::string::npos) continue;
    std::istringstream words(line);
    std::string own, address, flags, master;
    words >> own >> address >> flags >> master;
    return master == "-" ? replica : index_of(master);
  }
  throw std::runtime_error("a node does not know itself");
}

std::size_t RedisCluster::replica_of(std::size_t master) {
  std::size_t found = size();
  wait_for("a replica of node " + std::to_string(master) + " in step", [&] {
    for (std::size_t i = 0; i < size(); ++i) {
      if (i == master || !is_reachable(i) || master_of(i) != master) continue;
      if (value_of(client(i)("INFO replication").text, "master_link_status") != "up") continue;
      found = i;
      return true;
    }
    return false;
  });
  return found;
}

// CRC16 (XMODEM) of the part between braces, as the cluster's specification has it.
std::uint16_t RedisCluster::slot_of(std::string_view key) {
  const std::size_t open = key.find('{');
  if (open != std::string_view::npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  unsigned crc = 0;
  for (const char c : key) {
    crc ^= static_cast<unsigned>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021U : 0U)) & 0xFFFF;
  }
  return static_cast<std::uint16_t>(crc % kSlots);
}

bool RedisCluster::is_reachable(std::size_t index) {
  if (!node(index).is_running()) return false;
  try {
    RedisClient asked(node(index).endpoint(), std::chrono::milliseconds(300));
    return asked.ask({"ROLE"}).kind == RedisReply::Kind::kArray;
  } catch (const std::exception&) {  // paused
    return false;
  }
}

std::size_t RedisCluster::owner_of(std::uint16_t slot) {
  std::optional<std::size_t> owner;
  wait_for("one owner of slot " + std::to_string(slot), [&] {
    owner.reset();
    for (std::size_t i = 0; i < size(); ++i) {
      if (!is_reachable(i)) continue;
      RedisClient asked = client(i);
      const auto seen = owner_seen_by(asked, slot);
      if (!seen || (owner && *owner != index_of(*seen))) return false;
      owner = index_of(*seen);
    }
    return owner.has_value();
  });
  return *owner;
}

bool RedisCluster::is_up() {
  for (std::size_t i = 0; i < size(); ++i) {
    if (!is_reachable(i)) continue;
    RedisClient asked = client(i);
    const std::string info = asked("CLUSTER INFO").text;
    if (value_of(info, "cluster_state") != "ok" || value_of(info, "cluster_slots_ok") != "16384") {
      return false;
    }
    const std::string replication = asked("INFO replication").text;
    if (value_of(replication, "role") == "slave" &&
        value_of(replication, "master_link_status") != "up") {
      return false;
    }
    // The replicas that run are known to their master, so that WAIT counts them.
    std::size_t replicas = 0;
    for (std::size_t j = 0; j < size(); ++j)
      replicas += j != i && is_reachable(j) && master_of(j) == i;
    if (replicas > 0 && value_of(replication, "connected_slaves") != std::to_string(replicas)) {
      return false;
    }
  }
  return true;
}

void RedisCluster::wait_until_up() {
  try {
    wait_for("all slots are served and replicas are in step", [&] { return is_up(); });
  } catch (const std::runtime_error& error) {
    std::string states;
    for (std::size_t i = 0; i < size(); ++i) states += "\n" + state_of(i);
    throw std::runtime_error(error.what() + states);
  }
}

std::string RedisCluster::state_of(std::size_t index) {
  const std::string name = "node " + std::to_string(index) + " " + endpoint(index).text() + ": ";
  if (!is_reachable(index)) return name + "does not answer";
  RedisClient asked = client(index);
  return name + asked("CLUSTER INFO").text + asked("INFO replication").text +
         asked("CLUSTER NODES").text;
}

std::size_t RedisCluster::wait_for_successor(std::uint16_t slot, std::size_t gone) {
  std::size_t successor = gone;
  wait_for("a successor of node " + std::to_string(gone), [&] {
    for (std::size_t i = 0; i < size(); ++i) {
      if (i == gone || !is_reachable(i)) continue;
      RedisClient asked = client(i);
      const auto seen = owner_seen_by(asked, slot);
      if (!seen || index_of(*seen) == gone || !is_master(index_of(*seen))) continue;
      // The successor takes writes: its own view is whole, too.
      if (value_of(client(index_of(*seen))("CLUSTER INFO").text, "cluster_state") != "ok") continue;
      successor = index_of(*seen);
      return true;
    }
    return false;
  });
  return successor;
}

void RedisCluster::fail_over_to(std::size_t replica, bool by_force) {
  wait_for("node " + std::to_string(replica) + " is a master", [&] {
    if (is_master(replica)) return true;
    client(replica)(by_force ? "CLUSTER FAILOVER TAKEOVER" : "CLUSTER FAILOVER");
    return eventually([&] { return is_master(replica); }, std::chrono::seconds(5));
  });
}

void RedisCluster::move_slot(std::uint16_t slot, std::size_t to) {
  begin_move(slot, to);
  move_keys(slot, to);
  end_move(slot, to);
}

void RedisCluster::begin_move(std::uint16_t slot, std::size_t to) {
  const std::size_t from = owner_of(slot);
  const std::string set = "CLUSTER SETSLOT " + std::to_string(slot);
  client(to)(set + " IMPORTING " + id(from));
  client(from)(set + " MIGRATING " + id(to));
}

std::size_t RedisCluster::move_keys(std::uint16_t slot, std::size_t to, std::size_t most) {
  RedisClient from = client(owner_of(slot));
  const Endpoint there = node(to).endpoint();
  const RedisReply keys =
      from("CLUSTER GETKEYSINSLOT " + std::to_string(slot) + " " + std::to_string(most));
  for (const RedisReply& key : keys.elements) {
    from("MIGRATE " + there.address + " " + std::to_string(there.port) + " " + key.text +
         " 0 5000");
  }
  return keys.elements.size();
}

void RedisCluster::end_move(std::uint16_t slot, std::size_t to) {
  const std::size_t from = owner_of(slot);
  const std::string set = "CLUSTER SETSLOT " + std::to_string(slot) + " NODE " + id(to);
  client(to)(set);
  client(from)(set);
  wait_for("slot " + std::to_string(slot) + " has moved", [&] { return owner_of(slot) == to; });
}

void RedisCluster::partition(const std::set<std::size_t>& these, Clients clients) {
  for (std::size_t i = 0; i < size(); ++i) {
    for (std::size_t j = 0; j < size(); ++j) {
      if (these.contains(i) == these.contains(j)) continue;
      const std::string source = network_ + std::to_string(j + 1);
      nodes_[i].proxy->cut_from(source);
      nodes_[i].bus_proxy->cut_from(source);
    }
    const Clients side = these.contains(i) ? Clients::kSeeThese : Clients::kSeeOthers;
    if (clients != Clients::kSeeAll && clients != side) nodes_[i].proxy->cut_from("127.0.0.1");
  }
}

void RedisCluster::heal() {
  for (const Node& node : nodes_) {
    node.proxy->heal();
    node.bus_proxy->heal();
  }
}

}  // namespace lintel::testing
