// SPDX-License-Identifier: Apache-2.0
// A real redis-server as a child process, in a folder of its own, and what may happen to one.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/redis_lab/redis_client.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// The program; where it is not installed the test ends as skipped (exit status 77), naming the
// package.
std::string redis_server_binary();

class RedisServer {
 public:
  struct Options {
    std::string address = "127.0.0.1";
    std::uint16_t port = 0;                   // 0: a free one
    std::vector<std::string> arguments = {};  // further ones, as in {"--maxmemory", "20mb"}
    std::vector<std::string> greeting =
        {};                          // client()'s first command, as in {"AUTH", "name", "password"}
    std::string fsync = "everysec";  // of its file of commands
  };

  // Starts one on a free port and waits until it answers. Throws std::runtime_error with its log if
  // it does not.
  RedisServer();
  explicit RedisServer(Options options);

  Endpoint endpoint() const { return {options_.address, port_}; }
  std::uint16_t port() const { return port_; }
  RedisClient client() const;  // a new connection
  std::string log() const;     // everything written so far
  const std::filesystem::path& directory() const { return directory_.path(); }
  pid_t pid() const { return process_ ? process_->pid() : -1; }
  bool is_running() const { return process_ != nullptr; }

  void kill();       // by SIGKILL; a killed one is started again by start()
  void terminate();  // by SIGTERM: it writes its file and ends
  void pause();      // by SIGSTOP: connections stay and nothing answers
  void resume();     // by SIGCONT
  void start();      // again, at the same port, from the file it has
  void forget();     // of a server that is not running: removes its files, so that it starts empty
  // Cuts this many bytes off the end of the file of commands of a server that is not running, as a
  // power failure does.
  void cut_file(std::uintmax_t bytes);

 private:
  void spawn();
  bool answers_soon();  // false if it ended instead

  Options options_;
  TemporaryDirectory directory_;
  std::uint16_t port_ = 0;
  std::unique_ptr<Process> process_;
};

}  // namespace lintel::testing
