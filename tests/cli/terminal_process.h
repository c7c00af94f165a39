// SPDX-License-Identifier: Apache-2.0
// A program in a terminal of its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lintel::testing {

// A child process whose standard input, output and error are one pseudo-terminal, 80 by 24
// characters of UTF-8, as a person has one.
class TerminalProcess {
 public:
  // The program's path and its arguments.
  explicit TerminalProcess(const std::vector<std::string>& arguments);
  ~TerminalProcess();  // kills what still runs
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  // Types these keys; "\x03" is Ctrl-C, "\x04" Ctrl-D, "\x1b[A" the arrow up.
  void type(const std::string& keys) const;
  void send(int signal) const;
  pid_t pid() const { return pid_; }
  // Reads until `text` has come since the last call, or all has. Returns what came since then, up
  // to and with it.
  std::string read_until(const std::string& text);
  // Reads to the end and returns the exit status, or 128 + the signal.
  int wait();

 private:
  bool read_some();  // false at the end

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string unread_;
};

}  // namespace lintel::testing
