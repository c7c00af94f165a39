// Where a command reads and writes, and how it ends.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "client/lib/cancellation.h"

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

// Whoever read standard output has gone. The command ends quietly: the reader has what it wanted.
class OutputClosed {};

// Standard input, output and error of one command. Owns none of the descriptors.
//
// Threads: cancellation() from any thread; the rest from one at a time.
class Console {
 public:
  Console(int in, int out, int err) : in_(in), out_(out), err_(err) {}

  // Buffers; flush() sends. Throws OutputClosed or Failure.
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

  bool out_is_terminal() const;
  bool err_is_terminal() const;
  int err_fd() const { return err_; }

  Cancellation& cancellation() { return cancellation_; }

 private:
  bool fill_input();  // false at the end

  const int in_, out_, err_;
  std::string out_buffer_;
  std::string in_buffer_;
  std::size_t in_position_ = 0;  // in in_buffer_
  Cancellation cancellation_;
};

}  // namespace lintel::cli
