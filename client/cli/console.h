// SPDX-License-Identifier: Apache-2.0
// Where a command reads and writes, and how it ends.
#pragma once

#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "client/lib/call_error.h"

namespace lintel::cli {

enum ExitCode : int {
  kOk = 0,
  kFailed = 1,       // the call or the work failed, or was too late
  kUsage = 2,        // the command line makes no sense
  kUnavailable = 3,  // no server, or one that does not serve
};

// The command line makes no sense.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The work failed for a reason of our own: a file, its content.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The reader of standard output is gone. The command ends quietly: the reader has what it wanted.
class OutputClosed {};

// Standard input, output and error of one command. Owns none of the descriptors.
//
// Threads: cancellation(), cancel() and interrupt() from any thread; the rest from one at a time.
class Console {
 public:
  Console(int in, int out, int err) : in_(in), out_(out), err_(err) {}

  // Activations; flush() sends. Throws OutputClosed or Failure.
  void out(std::string_view text);
  void flush();
  // Unbuffered; what cannot be written is lost.
  void err(std::string_view text);

  // A line of standard input without its newline; nothing at the end. Throws Failure when the line
  // is longer than 64 MiB, CallError with CANCELLED when cancelled meanwhile.
  std::optional<std::string> read_line();
  // All of standard input; else as read_line.
  std::string read_all();
  // All of a file, or of standard input where `path` is "-". Throws Failure naming `flag` and
  // `path` when it cannot be read.
  std::string read_file(const std::string& flag, const std::string& path);

  bool in_is_terminal() const;
  bool out_is_terminal() const;
  bool err_is_terminal() const;
  int in_fd() const { return in_; }
  int err_fd() const { return err_; }

  Cancellation& cancellation() { return cancellation_; }
  // Ends the command, from any thread: cancels cancellation(), and what Ctrl-C would.
  void cancel();
  // Ctrl-C, from any thread: ends what an Interruptible has. False: there is none, so that it is
  // for the command.
  bool interrupt();

  // While it lives Ctrl-C ends the calls that run with its cancellation, and not the command.
  class Interruptible {
   public:
    explicit Interruptible(Console& console);
    ~Interruptible();
    Interruptible(const Interruptible&) = delete;
    Interruptible& operator=(const Interruptible&) = delete;

    Cancellation& cancellation() { return cancellation_; }

   private:
    Console& console_;
    Cancellation cancellation_;
  };

 private:
  bool fill_input();  // false at the end

  const int in_, out_, err_;
  std::string out_buffer_;
  std::string in_buffer_;
  std::size_t in_position_ = 0;  // in in_buffer_
  Cancellation cancellation_;
  std::mutex interruptible_mutex_;
  Interruptible* interruptible_ = nullptr;  // guarded by interruptible_mutex_; null: none
};

}  // namespace lintel::cli
