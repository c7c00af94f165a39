// The programs as processes.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// A child process with its standard output and error on pipes, its input empty.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();  // kills what still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads until the output holds `text` or has ended. Returns what was read so far.
  const std::string& read_out_until(const std::string& text);
  void close_out();  // as a reader does that has enough
  void send(int signal) const;
  // Reads to the end of output and error and returns the exit status, or 128 + the signal.
  int wait();

  const std::string& out() const { return out_text_; }
  const std::string& err() const { return err_text_; }

 private:
  // Reads what is there of either; false when both have ended.
  bool read_some();

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  std::string out_text_, err_text_;
};

struct Result {
  int code = 0;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
  std::vector<nlohmann::json> lines() const;  // of jsonl
};

// A lintel-server on a port of its own with tiny random models, named image, bytes and tokens.
class ServerProcess {
 public:
  explicit ServerProcess(const std::vector<TinyModel>& models,
                         const std::vector<std::string>& flags = {});

  const std::string& address() const { return address_; }
  // Runs lintel COMMAND --address A ARGUMENTS... to its end.
  Result lintel(const std::vector<std::string>& arguments) const;
  std::vector<std::string> command(const std::vector<std::string>& arguments) const;
  // SIGTERM, and the exit status.
  int stop();
  const std::string& out() const { return process_->out(); }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  // Writes a file into the server's temporary directory and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

}  // namespace lintel::testing
