// SPDX-License-Identifier: Apache-2.0
// A lintel-server that dies at given places, and is restarted on its port and its store.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/chaos/crash_recovery/kill_plan.h"
#include "tests/support/process.h"

namespace lintel::testing {

// The place of a crash: the number-th call of its kind.
struct Place {
  SystemCall call{};
  std::int64_t number = 0;
  When when{};
};

class CrashingServer {
 public:
  struct Options {
    std::filesystem::path directory;  // of its log and its plan
    std::filesystem::path models;     // with "tokens" and "bytes"
    std::filesystem::path store;      // empty: sessions are in memory
    std::deque<Place> places;         // of each life; then nothing kills it
  };
  struct Death {
    Place place;
    bool before_ready = false;  // it had not been in that life
  };

  // Returns at once; its address is served whenever it is alive.
  explicit CrashingServer(const Options& options);
  ~CrashingServer();

  const std::string& address() const { return address_; }
  // From now on nothing kills it but the next.
  void spare();
  // Kills it between two calls, and waits until it is ready once more.
  void kill_and_wait();
  // Ends it with SIGTERM. Returns what was wrong with its lives; empty: nothing.
  std::string stop();

  // After stop():
  const std::vector<Death>& deaths() const { return deaths_; }
  // From the start of the program until it was ready, of each life that became so.
  const std::vector<std::chrono::microseconds>& starts() const { return starts_; }
  const std::vector<std::int64_t>& counts() const { return counts_; }  // of calls in the first life

 private:
  void live();
  std::string log() const;

  const Options options_;
  std::string address_;
  KillPlan* const plan_;
  std::mutex mutex_;
  std::unique_ptr<Process> process_;  // of the thread
  std::deque<Place> places_;          // guarded by mutex_
  pid_t pid_ = -1;                    // of one that is ready, else -1; guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  std::vector<std::chrono::microseconds> starts_;  // guarded by mutex_
  std::string wrong_;                              // guarded by mutex_
  std::vector<Death> deaths_;                      // of the thread, then of the caller
  std::vector<std::int64_t> counts_;
  std::thread thread_;
};

}  // namespace lintel::testing
