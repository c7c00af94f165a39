// SPDX-License-Identifier: Apache-2.0
// A fleet of replicas that share a store, computed: where sessions go, and what the store has to
// bear.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "bench/fleet_model.h"
#include "bench/run_flags.h"
#include "client/cli/output.h"

namespace lintel::bench {
namespace {

constexpr const char* kFleetFooter = R"(
Nothing is served: routing is simulated with the tables that gRPC and Envoy build, the load of the store is arithmetic
from costs that were measured elsewhere, and are given by flags (docs/multi_server.md says what was measured where).
Each repeat draws other sessions, and other replicas that go.

Examples:
  lintel-bench fleet
  lintel-bench fleet --replicas 10 --idle 100000 --calls 1000
  lintel-bench fleet --script-time 12e-6 --json fleet.json)";

struct FleetFlags {
  RunFlags run;
  std::vector<int> replicas = {10, 100, 1000};
  int ring_entries = 131'072;
  FleetPlan plan;
};

struct Router {
  std::string name;
  MakePlacement make;
};

constexpr std::size_t kGrpcLeast = 1024, kGrpcCap = 4096;  // min_ring_size, and a client's cap
constexpr std::size_t kEnvoyMost = 8'388'608;              // maximum_ring_size

Router ring_router(const std::string& name, std::size_t least, std::size_t most) {
  return {"ring_hash, " + name,
          [=](const ReplicaNames& names) { return ring_hash(names, least, most); }};
}

std::vector<Router> routers_of(const FleetFlags& flags) {
  const auto entries = static_cast<std::size_t>(flags.ring_entries);
  return {ring_router("1,024 entries, as it comes", kGrpcLeast, kGrpcCap),
          ring_router("4,096, gRPC's cap", kGrpcCap, kGrpcCap),
          ring_router(Cell::count(flags.ring_entries).to_text() + " or more", entries,
                      std::max(entries, kEnvoyMost)),
          {"Maglev, 65,537 places", [](const ReplicaNames& names) { return maglev(names); }}};
}

class FleetExperiment {
 public:
  FleetExperiment(const FleetFlags& flags, cli::Console& console)
      : flags_(flags),
        measurement_(flags.run, "fleet", "a fleet, computed", console),
        progress_(console,
                  static_cast<std::int64_t>(flags.replicas.size() * routers_of(flags).size()),
                  "ways to route") {}

  int run() {
    add_routing();
    add_store();
    return measurement_.publish();
  }

 private:
  void add_routing() {
    const double running = flags_.plan.calls_per_second * flags_.plan.call_seconds;
    Table table{.title = "Where sessions go",
                .columns = {"replicas, balancer", "fullest by the mean: hashes",
                            "fullest by the mean: running calls", "moved when 1 goes, %",
                            "moved when a tenth goes, %", "sessions to read again when 1 goes"},
                .measured_here = false};
    for (const int replicas : flags_.replicas) {
      const ReplicaNames names = replica_names(static_cast<std::size_t>(replicas));
      for (const Router& router : routers_of(flags_)) {
        progress_.add(1);
        const std::string row = std::to_string(replicas) + ", " + router.name;
        if (replicas < 2 || replicas >= static_cast<int>(kGrpcCap)) {
          table.notes.push_back("Not for " + row + ": expected 2 to 4,095 replicas.");
          continue;
        }
        const std::unique_ptr<Placement> placement = router.make(names);
        std::vector<double> by_hash, by_running, one, tenth;
        for (int repeat = 0; repeat < flags_.run.repeats; ++repeat) {
          const auto seed = static_cast<std::uint64_t>(repeat) + 1;
          const Spread spread =
              spread_of(*placement, static_cast<std::size_t>(std::max(running, 1.0)), seed);
          by_hash.push_back(spread.fullest_share);
          by_running.push_back(spread.fullest_running);
          one.push_back(100 * moved_share(names, router.make, 1, seed));
          tenth.push_back(100 * moved_share(names, router.make,
                                            std::max<std::size_t>(names.size() / 10, 1), seed));
        }
        table.rows.push_back(
            {Cell::text(row), Cell::number(by_hash.front()), Cell::measured(summarize(by_running)),
             Cell::measured(summarize(one)), Cell::measured(summarize(tenth)),
             Cell::number(flags_.plan.idle_sessions * summarize(one).median / 100)});
      }
      // Every call goes anywhere: all but one in so many meet a replica that has no copy.
      table.rows.push_back({Cell::text(std::to_string(replicas) + ", none: any replica"),
                            Cell::number(1), Cell::none(), Cell::number(100 - 100.0 / replicas),
                            Cell::number(100 - 100.0 / replicas), Cell::none()});
    }
    table.notes.push_back("A session that moves is read from the store by its next call, " +
                          Cell::number(flags_.plan.session_bytes).to_text() +
                          " bytes; without affinity nearly every call reads one. As many replicas "
                          "coming moves as many.");
    measurement_.add(std::move(table));
  }

  void add_store() {
    Table table{.title = "What the store has to bear",
                .columns = {"level", "keys", "GB", "masters", "GB a master", "calls at a time",
                            "scripts/s", "scripts/s a master", "of a master's core, %"},
                .measured_here = false};
    const auto add = [&](const char* name, StoreLevel level) {
      const StoreLoad load = store_load(flags_.plan, level);
      table.rows.push_back(
          {Cell::text(name), Cell::number(load.keys), Cell::number(load.bytes / 1e9),
           Cell::count(load.masters), Cell::number(load.bytes_per_master / 1e9),
           Cell::number(load.running), Cell::number(load.scripts_per_second),
           Cell::number(load.scripts_per_master), Cell::number(100 * load.core_share)});
      measurement_.add(std::string(name) + "_masters", static_cast<double>(load.masters));
      measurement_.add(std::string(name) + "_scripts_per_second", load.scripts_per_second);
    };
    add("call", StoreLevel::kCall);
    add("input", StoreLevel::kInput);
    add("token", StoreLevel::kToken);
    table.notes.push_back(
        "Masters have memory for their sessions, four fifths full, and at most half a core busy; "
        "each wants a replica of the same size.");
    measurement_.add(std::move(table));
  }

  const FleetFlags& flags_;
  Measurement measurement_;
  cli::Progress progress_;
};

}  // namespace

void add_fleet(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<FleetExperiment, FleetFlags>(
      app, command_line, "fleet",
      "Where the sessions of many replicas go, and what their shared store has to bear",
      kFleetFooter);
  cli::add_parsed(command, "--replicas", flags->replicas, parse_counts, "N[,N...]",
                  "Replicas of the fleet [10, 100, 1000]");
  cli::add_parsed(command, "--ring-entries", flags->ring_entries, whole_number(), "N",
                  "Least entries of a ring beside those that gRPC has by itself [131072]");
  FleetPlan& plan = flags->plan;
  const auto add = [&app = command](const char* name, double& value, const char* unit,
                                    const char* help) {
    cli::add_parsed(app, name, value, positive_number(1e12), unit, help);
  };
  add("--idle", plan.idle_sessions, "N", "Sessions that wait for a call [5e7]");
  add("--calls", plan.calls_per_second, "N", "Calls a second [1e5]");
  add("--call-time", plan.call_seconds, "SECONDS", "That a call runs [0.64]");
  add("--session-bytes", plan.session_bytes, "N",
      "Of the store's memory, that a session takes [2900]");
  add("--script-time", plan.script_seconds, "SECONDS",
      "Of a master's core, that a script takes [28e-6]");
  add("--master-memory", plan.master_bytes, "N", "Bytes of a master [8e9]");
  flags->run.add_to(command, {1}, /*batch_help=*/"", /*with_workers=*/false);
}

}  // namespace lintel::bench
