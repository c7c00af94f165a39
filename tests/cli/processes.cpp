// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/processes.h"

#include <signal.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "model/lora/adapter.h"

namespace lintel::testing {

std::vector<nlohmann::json> Result::lines() const {
  std::vector<nlohmann::json> lines;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

ServerProcess::ServerProcess(const std::vector<TinyModel>& models,
                             const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {LINTEL_SERVER, "--listen", "127.0.0.1:0", "--http-listen",
                                        "off"};
  for (const TinyModel kind : models) {
    const std::string name = kind == TinyModel::kImage   ? "image"
                             : kind == TinyModel::kBytes ? "bytes"
                             : kind == TinyModel::kText  ? "text"
                                                         : "tokens";
    write_random_model(directory_.path() / name, tiny_config(kind), /*seed=*/7);
    arguments.insert(arguments.end(), {"--model", path(name)});
    if (kind == TinyModel::kTokens) {
      write_random_adapter(directory_.path() / name / "adapters/thin", tiny_config(kind),
                           {.rank = 2});
    }
  }
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  process_ = std::make_unique<Process>(arguments);
  const std::string ready = "lintel-server ready on ";
  const std::string& out = process_->read_out_until("\n");
  if (out.rfind(ready, 0) != 0 || out.back() != '\n') {
    process_->wait();
    throw std::runtime_error("lintel-server did not start: " + out + process_->err());
  }
  address_ = out.substr(ready.size(), out.size() - ready.size() - 1);
}

std::vector<std::string> ServerProcess::command(const std::vector<std::string>& arguments) const {
  std::vector<std::string> all = {LINTEL_CLI};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--address", address_});
  return all;
}

Result ServerProcess::lintel(const std::vector<std::string>& arguments) const {
  Process process(command(arguments));
  const int code = process.wait();
  return {code, process.out(), process.err()};
}

int ServerProcess::stop() {
  process_->send(SIGTERM);
  return process_->wait();
}

std::string ServerProcess::write(const std::string& name, const std::string& bytes) const {
  std::ofstream(path(name), std::ios::binary) << bytes;
  return path(name);
}

std::string new_token(const std::string& file, const std::string& name, const std::string& roles) {
  Process command({LINTEL_CLI, "token", "new", name, "--roles", roles, "--append", file});
  if (command.wait() != 0) throw std::runtime_error("lintel token new: " + command.err());
  return command.out().substr(0, 64);
}

}  // namespace lintel::testing
