// What a fleet asks of its shared store: arithmetic, from measured costs.
#pragma once

#include <cstdint>

namespace lintel::bench {

enum class StoreLevel { kCall, kInput, kToken };  // what is written down: docs/session_storage.md

struct FleetPlan {
  double idle_sessions = 50e6;
  double calls_per_second = 100e3;
  double call_seconds = 0.64;   // that a call runs
  double session_bytes = 2900;  // of the store, for a session of 784 values without its state
  double keys_per_session = 2;
  double scripts_per_call = 3;    // claim, begin and end; kCall writes no begin
  double values_seconds = 1;      // kInput: between writes of a running call's values
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

// What this level asks for.
StoreLoad store_load(const FleetPlan& plan, StoreLevel level);

}  // namespace lintel::bench
