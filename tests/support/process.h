// SPDX-License-Identifier: Apache-2.0
// A program as a child process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lintel::testing {

// A child process with its standard output and error on pipes, its input empty.
class Process {
 public:
  // The program's path and its arguments.
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();  // kills what still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads until the output holds `text` or has ended. Returns what was read so far.
  const std::string& read_out_until(const std::string& text);
  // The same of standard error.
  const std::string& read_err_until(const std::string& text);
  void close_out();  // as a reader does that has enough
  void send(int signal) const;
  // Reads to the end of output and error and returns the exit status, or 128 + the signal.
  int wait();
  pid_t pid() const { return pid_; }  // -1 once it was waited for

  const std::string& out() const { return out_text_; }
  const std::string& err() const { return err_text_; }

 private:
  // Reads what is there of either; false when both have ended.
  bool read_some();

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  std::string out_text_, err_text_;
};

}  // namespace lintel::testing
