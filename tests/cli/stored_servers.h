// SPDX-License-Identifier: Apache-2.0
// lintel-servers with one store, and lintel as their client.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/processes.h"
#include "tests/support/catch.h"

namespace lintel::testing {

// Servers on sockets of these names, one at a time; the client knows all of them.
class StoredServers {
 public:
  explicit StoredServers(std::vector<std::string> sockets, std::vector<std::string> flags = {})
      : flags_(std::move(flags)) {
    write_random_model(path("tokens"), tiny_config(TinyModel::kTokens), /*seed=*/7);
    for (const std::string& socket : sockets) {
      addresses_ += (addresses_.empty() ? "unix:" : ",unix:") + path(socket);
    }
  }

  std::unique_ptr<Process> serve(const std::string& socket) const {
    std::vector<std::string> command = {LINTEL_SERVER,
                                        "--listen",
                                        "unix:" + path(socket),
                                        "--model",
                                        path("tokens"),
                                        "--session-store",
                                        path("store"),
                                        "--max-new-tokens",
                                        "1000000",
                                        "--replica-id",
                                        socket,
                                        "--log-level",
                                        "error"};
    command.insert(command.end(), flags_.begin(), flags_.end());
    auto process = std::make_unique<Process>(command);
    REQUIRE(process->read_out_until("\n").rfind("lintel-server ready on ", 0) == 0);
    return process;
  }
  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), LINTEL_CLI);
    arguments.insert(arguments.end(), {"--address", addresses_});
    return arguments;
  }
  // Runs lintel and returns its output, without the newline.
  std::string lintel(const std::vector<std::string>& arguments) const {
    Process process(command(arguments));
    const int code = process.wait();
    INFO(process.err());
    REQUIRE(code == 0);
    const std::string& out = process.out();
    return out.substr(0, out.find_last_not_of('\n') + 1);
  }

 private:
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  const TemporaryDirectory directory_;
  const std::vector<std::string> flags_;
  std::string addresses_;
};

}  // namespace lintel::testing
