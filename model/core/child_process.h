// SPDX-License-Identifier: Apache-2.0
// ChildProcess: another program of this build, as a child of this process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lintel {

// The program `name` in the directory of this process's executable; `name` itself, which is then
// looked for on the PATH, where there is none.
std::filesystem::path program_beside(const std::string& name);

// Its standard input is empty and its standard output a pipe. It gets SIGTERM when this process
// ends, also when that is killed.
//
// Threads: made by one that lives as long as the process, as main's does: the system takes the end
// of that thread for the parent's. Used by one at a time.
class ChildProcess {
 public:
  struct Options {
    int error = -1;          // a descriptor for its standard error; -1: this process's
    bool has_group = false;  // a process group of its own: Ctrl-C in the terminal is not for it
  };
  // `words`: the program and its arguments. Throws std::system_error where there is no room for
  // another process; a program that cannot be run ends with status 127.
  ChildProcess(const std::vector<std::string>& words, const Options& options);
  // SIGTERM, and SIGKILL to what runs on.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Its standard output; owned by the object.
  int out() const { return out_; }
  // Sends SIGTERM, waits at most `patience`, then sends SIGKILL. Returns as wait().
  int end(std::chrono::milliseconds patience);
  // Waits for its end. The exit status, or 128 + the signal that ended it.
  int wait();
  // Waits likewise, at most `patience`. Nothing: it runs.
  std::optional<int> wait_for(std::chrono::milliseconds patience);

 private:
  std::optional<int> poll();  // as wait(), if it has ended

  pid_t pid_ = -1;
  int out_ = -1;
  std::optional<int> status_;
};

}  // namespace lintel
