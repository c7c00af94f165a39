// SPDX-License-Identifier: Apache-2.0
// A lintel-server that shares its store with others: killed, paused, ended and started again on its
// port.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace lintel::testing {

class ReplicaProcess {
 public:
  struct Options {
    std::filesystem::path directory;  // of its log
    std::filesystem::path model;
    std::string name;   // its --replica-id
    std::string store;  // redis://...
    std::string lease;  // its --session-lease
  };
  // Starts it and waits until it is ready. Throws std::runtime_error with its log.
  explicit ReplicaProcess(Options options);

  const std::string& address() const { return address_; }
  pid_t pid() const { return process_->pid(); }
  void pause();
  void resume();
  void kill_and_start();
  void end_and_start();  // by SIGTERM
  // Ends it; returns what it wrote if it did not end as it should.
  std::string stop();

 private:
  void start();
  std::string log() const;

  const Options options_;
  const std::string address_;
  std::unique_ptr<Process> process_;
};

}  // namespace lintel::testing
