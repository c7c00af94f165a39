// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/fake_redis.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace lintel::testing {
namespace {

// Takes a whole command off the front; nothing where it has not come yet.
std::optional<FakeRedis::Command> take_command(std::string& bytes) {
  std::size_t at = 0;
  const auto number = [&](char kind) -> std::optional<std::size_t> {
    const std::size_t end = bytes.find("\r\n", at);
    if (end == std::string::npos || bytes[at] != kind) return std::nullopt;
    const std::size_t value = std::stoul(bytes.substr(at + 1, end - at - 1));
    at = end + 2;
    return value;
  };
  const auto count = number('*');
  if (!count) return std::nullopt;
  FakeRedis::Command command;
  for (std::size_t i = 0; i < *count; ++i) {
    const auto size = number('$');
    if (!size || bytes.size() < at + *size + 2) return std::nullopt;
    command.push_back(bytes.substr(at, *size));
    at += *size + 2;
  }
  bytes.erase(0, at);
  return command;
}

}  // namespace

FakeRedis::FakeRedis(Answer answer)
    : answer_(std::move(answer)),
      listener_(listen_at({})),
      endpoint_(local_endpoint(listener_)),
      accepting_([this] { accept_all(); }) {}

FakeRedis::~FakeRedis() {
  is_closing_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  for (const int socket : sockets_) ::close(socket);
  ::close(listener_);
}

std::string FakeRedis::bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

std::string FakeRedis::good_info() {
  return bulk("redis_version:7.2.0\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n");
}

void FakeRedis::accept_all() {
  while (!is_closing_) {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0) return;
    const std::lock_guard lock(mutex_);
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { serve(socket); });
  }
}

void FakeRedis::serve(int socket) {
  const Send send = [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  };
  std::string bytes;
  std::array<char, 4096> buffer;
  while (!is_closing_) {
    const ssize_t count = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (count <= 0) return;
    bytes.append(buffer.data(), static_cast<std::size_t>(count));
    while (const std::optional<Command> command = take_command(bytes)) answer_(*command, send);
  }
}

}  // namespace lintel::testing
