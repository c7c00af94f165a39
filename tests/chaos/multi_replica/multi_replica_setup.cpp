// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/multi_replica/multi_replica_setup.h"

#include <thread>

#include "tests/support/random_model.h"

namespace lintel::testing {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kLease = 3s;  // of the replicas

void rest(milliseconds time) { std::this_thread::sleep_for(time); }

}  // namespace

MultiReplicaSetup::MultiReplicaSetup(Options options) : random_(options.seed) {
  write_random_model(directory_.path() / "tokens", tiny_config(TinyModel::kTokens), /*seed=*/7);
  if (options.cluster) {
    cluster_.emplace();
  } else {
    // Redis with `everysec` holds unwritten bytes while a sync runs, for up to two seconds: a kill
    // takes them along.
    server_.emplace(RedisServer::Options{
        .arguments = {"--aof-timestamp-enabled", "yes", "--auto-aof-rewrite-percentage", "0"},
        .fsync = "always"});
  }
  for (std::size_t i = 0; i < 2; ++i) {
    std::string store = "redis://";
    if (cluster_) {
      store += cluster_->endpoints();
    } else {
      store += networks_.emplace_back(std::make_unique<TcpProxy>(server_->endpoint()))
                   ->endpoint()
                   .text();
    }
    replicas_.push_back(std::make_unique<ReplicaProcess>(
        ReplicaProcess::Options{.directory = directory_.path(),
                                .model = directory_.path() / "tokens",
                                .name = "replica-" + std::to_string(i),
                                .store = store,
                                .lease = std::to_string(kLease.count()) + "s"}));
  }
}

std::vector<std::string> MultiReplicaSetup::addresses() const {
  return {replicas_[0]->address(), replicas_[1]->address()};
}

void MultiReplicaSetup::strike() {
  const std::size_t which = random_() % 2;
  ReplicaProcess& replica = *replicas_[which];
  switch (random_() % 8) {
    case 0:
      note("replica paused beyond its lease", which);
      replica.pause();
      rest(kLease + 1s);
      replica.resume();
      break;
    case 1:
      note("replica paused", which);
      replica.pause();
      rest(milliseconds(random_() % 2000));
      replica.resume();
      break;
    case 2:
      note("replica killed", which);
      replica.kill_and_start();
      break;
    case 3:
      note("replica ended", which);
      replica.end_and_start();
      break;
    default:
      cluster_ ? strike_cluster() : strike_server(which);
  }
  Strike& last = strikes_.back();
  last.took = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - began_) - last.at;
  rest(milliseconds(500 + random_() % 1500));
}

std::vector<std::string> MultiReplicaSetup::stop() {
  std::vector<std::string> wrong;
  for (const auto& replica : replicas_) {
    if (std::string text = replica->stop(); !text.empty()) wrong.push_back(text);
  }
  return wrong;
}

std::string MultiReplicaSetup::script_cost() {
  if (!server_) return "";
  const std::string stats = server_->client()("INFO commandstats").text;
  const std::size_t at = stats.find("cmdstat_evalsha");
  return at == std::string::npos ? "" : stats.substr(at, stats.find('\r', at) - at);
}

void MultiReplicaSetup::note(const std::string& what, std::optional<std::size_t> which) {
  const auto at = SteadyClock::now() - began_;
  strikes_.push_back(
      {.at = std::chrono::duration_cast<milliseconds>(at), .what = what, .which = which});
}

void MultiReplicaSetup::strike_server(std::size_t which) {
  TcpProxy& network = *networks_[which];
  switch (random_() % 6) {
    case 0:
      note("replica cut off from the store", which);
      network.cut();
      rest(milliseconds(random_() % 5000));
      network.heal();
      break;
    case 1:
      note("answers of the store held", which);
      network.cut_answers();
      rest(milliseconds(random_() % 2000));
      network.heal();
      break;
    case 2:
      note("answer of a script lost", which);
      network.lose_answer_to("EVALSHA");
      break;
    case 3:
      note("connections to the store reset", which);
      network.reset();
      break;
    case 4:
      note("store paused");
      server_->pause();
      rest(milliseconds(random_() % 4000));
      server_->resume();
      break;
    default:
      note("store killed");
      server_->kill();
      rest(milliseconds(random_() % 1000));
      server_->start();
  }
}

void MultiReplicaSetup::strike_cluster() {
  const auto slot = static_cast<std::uint16_t>(random_() % 16384);
  const std::size_t owner = cluster_->owner_of(slot);
  switch (random_() % 4) {
    case 0:
      note("master killed");
      cluster_->node(owner).kill();
      cluster_->wait_for_successor(slot, owner);
      cluster_->node(owner).start();
      break;
    case 1:
      note("master paused beyond the node timeout");
      cluster_->node(owner).pause();
      cluster_->wait_for_successor(slot, owner);
      cluster_->node(owner).resume();
      break;
    case 2:
      note("failover in agreement");
      cluster_->fail_over_to(cluster_->replica_of(owner));
      break;
    default: {
      note("slots moved");
      for (int i = 0; i < 20; ++i) {
        const auto moved = static_cast<std::uint16_t>((slot + i) % 16384);
        const std::size_t from = cluster_->owner_of(moved);
        std::size_t to = random_() % cluster_->size();
        while (to == from || !cluster_->is_master(to)) to = random_() % cluster_->size();
        cluster_->move_slot(moved, to);
      }
    }
  }
  cluster_->wait_until_up();
}

void MultiReplicaSetup::keep(const std::filesystem::path& to) const {
  using std::filesystem::copy_options;
  const auto how = copy_options::recursive | copy_options::overwrite_existing;
  std::filesystem::copy(directory_.path(), to, how);
  if (server_) std::filesystem::copy(server_->directory(), to / "redis", how);
}

}  // namespace lintel::testing
