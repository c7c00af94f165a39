// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/redis_server.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

constexpr int kSkipped = 77;  // shown by ctest as skipped
constexpr int kTrials = 5;    // of ports that another process takes first

// The newest of its files of commands that grows; base and manifest are written once.
std::filesystem::path file_of_commands(const std::filesystem::path& directory) {
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "appendonlydir")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".incr.aof") && name > newest.filename().string()) newest = entry.path();
  }
  return newest;
}

}  // namespace

std::string redis_server_binary() {
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "/usr/bin");
  for (std::string folder; std::getline(path, folder, ':');) {
    const std::string file = folder + "/redis-server";
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  std::fputs(
      "skipped: needs redis-server, of the package redis-server (scripts/setup.sh --redis)\n",
      stderr);
  std::fflush(nullptr);
  std::_Exit(kSkipped);
}

RedisServer::RedisServer() : RedisServer(Options()) {}

RedisServer::RedisServer(Options options) : options_(std::move(options)) {
  for (int trial = 1;; ++trial) {
    port_ = options_.port != 0 ? options_.port : free_port(options_.address);
    spawn();
    if (answers_soon()) return;
    process_.reset();
    if (options_.port != 0 || trial == kTrials)
      throw std::runtime_error("redis-server does not start:\n" + log());
  }
}

void RedisServer::spawn() {
  std::vector<std::string> command = {
      redis_server_binary(), "--bind", options_.address, "--port", std::to_string(port_), "--dir",
      directory_.path().string(), "--logfile", (directory_.path() / "redis.log").string(),
      "--daemonize", "no", "--protected-mode", "no", "--save", "", "--appendonly", "yes",
      "--appendfsync", options_.fsync, "--maxmemory-policy", "noeviction",
      // A test does not wait for a second replica to come and share a transfer.
      "--repl-diskless-sync-delay", "0", "--bind-source-addr", options_.address};
  command.insert(command.end(), options_.arguments.begin(), options_.arguments.end());
  process_ = std::make_unique<Process>(command);
}

bool RedisServer::answers_soon() {
  bool answers = false;
  eventually([&] {
    siginfo_t ended{};
    if (waitid(P_PID, static_cast<id_t>(pid()), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        ended.si_pid == pid()) {
      return true;  // it has ended
    }
    try {
      // Another process's server may have this port; one that reads its file says LOADING.
      RedisClient asking = client();
      const RedisReply reply = asking.ask({"INFO", "server"});
      answers =
          reply.text.find("process_id:" + std::to_string(pid()) + "\r") != std::string::npos &&
          asking.ask({"DBSIZE"}).kind == RedisReply::Kind::kInteger;
    } catch (const std::exception&) {
    }
    return answers;
  });
  return answers;
}

RedisClient RedisServer::client() const {
  RedisClient made(endpoint());
  if (!options_.greeting.empty()) {
    if (const RedisReply reply = made.ask(options_.greeting); reply.is_error()) {
      throw std::runtime_error("redis-server does not take its greeting: " + reply.text);
    }
  }
  return made;
}

std::string RedisServer::log() const {
  std::ifstream in(directory_.path() / "redis.log");
  return {std::istreambuf_iterator<char>(in), {}};
}

void RedisServer::kill() {
  if (!process_) return;
  process_->send(SIGKILL);
  process_->wait();
  process_.reset();
}

void RedisServer::terminate() {
  if (!process_) return;
  process_->send(SIGTERM);
  process_->wait();
  process_.reset();
}

void RedisServer::pause() { process_->send(SIGSTOP); }
void RedisServer::resume() { process_->send(SIGCONT); }

void RedisServer::start() {
  if (process_) return;
  spawn();
  if (!answers_soon()) {
    process_.reset();
    throw std::runtime_error("redis-server does not start again:\n" + log());
  }
}

void RedisServer::forget() {
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    if (entry.path().filename() != "redis.log") std::filesystem::remove_all(entry.path());
  }
}

void RedisServer::cut_file(std::uintmax_t bytes) {
  const std::filesystem::path file = file_of_commands(directory_.path());
  const std::uintmax_t size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size - std::min(bytes, size));
}

}  // namespace lintel::testing
