// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/multi_replica/replica_process.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "tests/server/redis_lab/sockets.h"

namespace lintel::testing {

ReplicaProcess::ReplicaProcess(Options options)
    : options_(std::move(options)), address_(Endpoint{"127.0.0.1", free_port()}.text()) {
  start();
}

std::string ReplicaProcess::log() const {
  std::ifstream in(options_.directory / (options_.name + ".log"));
  return {std::istreambuf_iterator<char>(in), {}};
}

void ReplicaProcess::start() {
  process_ = std::make_unique<Process>(std::vector<std::string>{
      "/bin/sh", "-c", "exec 2>>\"$0\"; exec \"$@\"",
      (options_.directory / (options_.name + ".log")).string(), LINTEL_SERVER, "--listen", address_,
      "--http-listen", "off", "--workers", "1", "--model", options_.model.string(),
      "--session-store", options_.store, "--session-lease", options_.lease, "--replica-id",
      options_.name});
  if (process_->read_out_until("\n").rfind("lintel-server ready on ", 0) != 0) {
    throw std::runtime_error(options_.name + " is not ready:\n" + log());
  }
}

void ReplicaProcess::pause() { process_->send(SIGSTOP); }
void ReplicaProcess::resume() { process_->send(SIGCONT); }

void ReplicaProcess::kill_and_start() {
  process_->send(SIGKILL);
  process_->wait();
  start();
}

void ReplicaProcess::end_and_start() {
  process_->send(SIGTERM);
  process_->wait();
  start();
}

std::string ReplicaProcess::stop() {
  process_->send(SIGTERM);
  const int status = process_->wait();
  if (status == 0) return "";
  const std::string all = log();
  return options_.name + " ended with " + std::to_string(status) + ":\n" +
         all.substr(all.size() - std::min<std::size_t>(all.size(), 3000));
}

}  // namespace lintel::testing
