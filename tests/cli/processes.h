// SPDX-License-Identifier: Apache-2.0
// The programs as processes.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

struct Result {
  int code = 0;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
  std::vector<nlohmann::json> lines() const;  // of jsonl
};

// A lintel-server on a port of its own with tiny random models, named image, bytes, text and
// tokens; the last has an adapter, thin.
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
  const std::string& err() const { return process_->err(); }  // of a server that was stopped: all
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  // Writes a file into the server's temporary directory and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

// Adds a token to the file with `lintel token new`, and returns it.
std::string new_token(const std::string& file, const std::string& name, const std::string& roles);

}  // namespace lintel::testing
