// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/crash_recovery/crashing_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A port that is free now, and that the system will not assign by itself soon.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no port is free");
  }
  close(fd);
  return ntohs(address.sin_port);
}

KillPlan* map_plan(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(KillPlan)) != 0) throw std::runtime_error("no plan");
  void* const mapped = mmap(nullptr, sizeof(KillPlan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) throw std::runtime_error("no plan");
  return new (mapped) KillPlan;
}

std::chrono::microseconds since(SteadyClock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() - begin);
}

}  // namespace

CrashingServer::CrashingServer(const Options& options)
    : options_(options),
      address_("127.0.0.1:" + std::to_string(free_port())),
      plan_(map_plan(options.directory / "plan")),
      places_(options.places) {
  thread_ = std::thread([this] { live(); });
}

CrashingServer::~CrashingServer() {
  stop();
  munmap(plan_, sizeof(KillPlan));
}

std::string CrashingServer::log() const {
  std::ostringstream text;
  text << std::ifstream(options_.directory / "log").rdbuf();
  return text.str();
}

void CrashingServer::live() {
  std::vector<std::string> words = {"/bin/sh",
                                    "-c",
                                    "exec 2>>\"$0\"; exec env \"$@\"",
                                    (options_.directory / "log").string(),
                                    "LD_PRELOAD=" LINTEL_KILL_SHIM,
                                    "LINTEL_TEST_KILL=" + (options_.directory / "plan").string(),
                                    LINTEL_SERVER,
                                    "--listen",
                                    address_,
                                    "--http-listen",
                                    "off",
                                    "--workers",
                                    "2",
                                    "--model",
                                    (options_.models / "tokens").string(),
                                    "--model",
                                    (options_.models / "bytes").string()};
  if (!options_.store.empty()) {
    words.insert(words.end(), {"--session-store", options_.store.string(), "--session-park-tokens",
                               "32", "--max-sessions", "5"});
  }
  for (bool first = true;; first = false) {
    std::optional<Place> place;
    {
      const std::lock_guard lock(mutex_);
      for (auto& count : plan_->counts) count = 0;
      plan_->killed = 0;
      if (!places_.empty()) {
        place = places_.front();
        places_.pop_front();
        plan_->call = place->call;
        plan_->when = place->when;
      }
      plan_->number = place ? place->number : 0;
    }
    const auto begin = SteadyClock::now();
    process_ = std::make_unique<Process>(words);
    const bool ready = process_->read_out_until("\n").rfind("lintel-server ready on ", 0) == 0;
    if (ready) {
      const std::lock_guard lock(mutex_);
      starts_.push_back(since(begin));
      pid_ = process_->pid();
      if (stopping_) kill(pid_, SIGTERM);
    }
    const int status = process_->wait();
    if (first) counts_.assign(plan_->counts.begin(), plan_->counts.end());
    const bool by_plan = plan_->killed != 0;
    if (by_plan) deaths_.push_back({*place, !ready});
    const std::lock_guard lock(mutex_);
    pid_ = -1;
    if (stopping_ && status == 0) return;
    if (status != 128 + SIGKILL || (!ready && !by_plan)) {
      wrong_ = "the server ended with " + std::to_string(status) + ":\n" + log();
      return;
    }
  }
}

void CrashingServer::spare() {
  const std::lock_guard lock(mutex_);
  places_.clear();
  plan_->number = 0;
}

void CrashingServer::kill_and_wait() {
  std::size_t starts = 0;
  const auto lives = [&] {
    const std::lock_guard lock(mutex_);
    starts = starts_.size();
    return !wrong_.empty() || (pid_ > 0 && kill(pid_, SIGKILL) == 0);
  };
  const auto lives_again = [&] {
    const std::lock_guard lock(mutex_);
    return !wrong_.empty() || starts_.size() > starts;
  };
  if (eventually(lives) && eventually(lives_again)) return;
  const std::lock_guard lock(mutex_);
  wrong_ = "the server did not come back:\n" + log();
}

std::string CrashingServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (pid_ > 0) kill(pid_, SIGTERM);
  }
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  return wrong_;
}

}  // namespace lintel::testing
