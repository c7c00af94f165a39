// SPDX-License-Identifier: Apache-2.0
#include "tests/server/redis_lab/redis_client.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace lintel::testing {

std::string RedisReply::shown() const {
  switch (kind) {
    case Kind::kText:
      return '"' + text + '"';
    case Kind::kError:
      return "error " + text;
    case Kind::kInteger:
      return std::to_string(integer);
    case Kind::kNull:
      return "null";
    case Kind::kArray:
      break;
  }
  std::string all = "[";
  for (const RedisReply& element : elements) all += element.shown() + " ";
  return all + "]";
}

RedisClient::RedisClient(const Endpoint& server, std::chrono::milliseconds patience)
    : socket_(connect_to(server)), name_(server.text()) {
  const timeval time{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

RedisClient::RedisClient(RedisClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      name_(std::move(other.name_)),
      unread_(std::move(other.unread_)) {}

RedisClient::~RedisClient() {
  if (socket_ >= 0) close(socket_);
}

RedisReply RedisClient::ask(const std::vector<std::string>& command) {
  std::string bytes = "*" + std::to_string(command.size()) + "\r\n";
  for (const std::string& word : command) {
    bytes += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  }
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t now = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) throw std::runtime_error(name_ + " takes no command");
    sent += static_cast<std::size_t>(now);
  }
  return read_reply();
}

RedisReply RedisClient::operator()(std::string_view words) {
  std::istringstream in{std::string(words)};
  std::vector<std::string> command;
  for (std::string word; in >> word;) command.push_back(word);
  RedisReply reply = ask(command);
  if (reply.is_error()) {
    throw std::runtime_error(name_ + " answers " + std::string(words) + ": " + reply.text);
  }
  return reply;
}

void RedisClient::read_more() {
  std::array<char, 65536> bytes;
  const ssize_t got = recv(socket_, bytes.data(), bytes.size(), 0);
  if (got <= 0) {
    throw std::runtime_error(name_ + (got == 0 ? " has hung up" : " does not answer"));
  }
  unread_.append(bytes.data(), static_cast<std::size_t>(got));
}

std::string RedisClient::read_line() {
  std::size_t end;
  while ((end = unread_.find("\r\n")) == std::string::npos) read_more();
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 2);
  return line;
}

std::string RedisClient::read_bytes(std::size_t count) {
  while (unread_.size() < count + 2) read_more();
  std::string bytes = unread_.substr(0, count);
  unread_.erase(0, count + 2);
  return bytes;
}

RedisReply RedisClient::read_reply() {
  using Kind = RedisReply::Kind;
  const std::string line = read_line();
  const std::string rest = line.substr(1);
  switch (line[0]) {
    case '+':
      return {Kind::kText, rest, 0, {}};
    case '-':
      return {Kind::kError, rest, 0, {}};
    case ':':
      return {Kind::kInteger, "", std::stoll(rest), {}};
    case '$':
      if (rest == "-1") return {};
      return {Kind::kText, read_bytes(std::stoul(rest)), 0, {}};
    case '*': {
      if (rest == "-1") return {};
      RedisReply array{Kind::kArray, "", 0, {}};
      for (std::size_t left = std::stoul(rest); left > 0; --left) {
        array.elements.push_back(read_reply());
      }
      return array;
    }
    default:
      throw std::runtime_error(name_ + " does not speak RESP: " + line);
  }
}

}  // namespace lintel::testing
