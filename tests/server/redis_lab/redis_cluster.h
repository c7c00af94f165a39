// SPDX-License-Identifier: Apache-2.0
// A real Redis Cluster on loopback: masters and their replicas, each a redis-server at a loopback
// address of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/redis_lab/tcp_proxy.h"

namespace lintel::testing {

// Nodes 0 to masters-1 begin as masters, each with an equal share of the slots; node masters+i
// begins as a replica of master i % masters. What a call waits for and does not come within a
// minute is a std::runtime_error.
class RedisCluster {
 public:
  struct Options {
    std::size_t masters = 3, replicas = 3;
    std::chrono::milliseconds node_timeout{
        1000};  // a node that is silent for longer counts as gone
    bool has_proxies =
        false;  // in front of each node, for partition(): clients and nodes meet there
    std::vector<std::string> arguments = {};  // of every node
    std::vector<std::string> greeting = {};   // of every client()
  };

  RedisCluster();
  explicit RedisCluster(Options options);

  std::size_t size() const { return nodes_.size(); }
  RedisServer& node(std::size_t index) { return *nodes_[index].server; }
  RedisClient client(std::size_t index) { return node(index).client(); }
  // The address of a node, and those of all as --session-store takes them: "A:P,B:P".
  Endpoint endpoint(std::size_t index) const;
  std::string endpoints() const;
  const std::string& id(std::size_t index) const { return nodes_[index].id; }
  TcpProxy& proxy(std::size_t index) {
    return *nodes_[index].proxy;
  }  // for clients, if has_proxies

  bool is_master(std::size_t index);  // as the node itself says
  std::size_t master_of(
      std::size_t replica);  // as the node itself says; its own index if it is a master
  std::size_t replica_of(std::size_t master);  // one that runs and is in step
  static std::uint16_t slot_of(std::string_view key);
  std::size_t owner_of(std::uint16_t slot);  // as the running nodes agree, waited for
  std::size_t owner_of_key(std::string_view key) { return owner_of(slot_of(key)); }

  // Until all nodes that run see all slots served and all who run in step.
  void wait_until_up();
  // Waits until another node serves the slot of this master, which was killed, paused or cut off.
  // Returns which.
  std::size_t wait_for_successor(std::uint16_t slot, std::size_t gone);
  // The replica takes its master's place, in agreement with it (nothing is lost), or by force.
  void fail_over_to(std::size_t replica, bool by_force = false);

  // Moves a slot with its keys to another master while clients run. In three steps for tests that
  // look between: after begin_move() a key that is not there any more is asked for at the new one
  // (ASK), after end_move() it is MOVED.
  void move_slot(std::uint16_t slot, std::size_t to);
  void begin_move(std::uint16_t slot, std::size_t to);
  std::size_t move_keys(std::uint16_t slot, std::size_t to,
                        std::size_t most = 1 << 20);  // returns the number there were
  void end_move(std::uint16_t slot, std::size_t to);

  // Cuts the network between these nodes and the others, and that between clients (of 127.0.0.1)
  // and one of both sides, with has_proxies. Connections stay open and silent.
  enum class Clients { kSeeAll, kSeeThese, kSeeOthers };
  void partition(const std::set<std::size_t>& these, Clients clients);
  void heal();

 private:
  struct Node {
    std::unique_ptr<RedisServer> server;
    std::unique_ptr<TcpProxy> proxy, bus_proxy;
    std::uint16_t bus_port = 0;  // as the others know it
    std::string id;
  };
  void add_node(std::size_t index);
  void meet();
  void share_slots();
  void attach_replicas();
  std::size_t index_of(std::string_view id) const;
  bool is_up();
  bool is_reachable(std::size_t index);
  std::string state_of(std::size_t index);  // for messages

  Options options_;
  std::string network_;  // "127.A.B."
  std::vector<Node> nodes_;
};

}  // namespace lintel::testing
