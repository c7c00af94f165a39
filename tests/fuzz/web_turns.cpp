// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "server/http/transport/http_connection.h"
#include "server/http/transport/websocket.h"
#include "tests/fuzz/web_inputs.h"

namespace lintel::fuzz {
namespace {

constexpr std::size_t kMostTurnMessage = 256 << 10;
// Bytes that are read of a message while another one is answered, with those read at once.
constexpr std::int64_t kMostAhead = 20 << 10;

void hold_that(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(std::string("broken promise: ") + promise);
}

// Numbers of a script; zeros after its end.
class Script {
 public:
  explicit Script(std::string_view bytes) : bytes_(bytes) {}
  bool is_over() const { return bytes_.empty(); }
  std::uint8_t next() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  std::string_view take(std::size_t size) {
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

// The head of a client's frame, with a mask that changes nothing.
std::string frame_head(int first, std::size_t size) {
  std::string head = {static_cast<char>(first)};
  const auto add = [&](int num_bytes) {
    for (int i = num_bytes - 1; i >= 0; --i) {
      head.push_back(static_cast<char>(std::uint64_t{size} >> (8 * i)));
    }
  };
  if (size < 126) {
    head.push_back(static_cast<char>(0x80 | size));
  } else if (size <= 0xffff) {
    head.push_back(static_cast<char>(0x80 | 126));
    add(2);
  } else {
    head.push_back(static_cast<char>(0x80 | 127));
    add(8);
  }
  return head + std::string(4, '\0');
}

// A connection with a WebSocket, whose turns the script ends. All on one thread.
class Socket {
 public:
  Socket() : origins_({}, ListenAddress{}) {
    options_.listen = ListenAddress{"127.0.0.1", 8080, ""};
    routes_.add({.method = "GET",
                 .path = "/socket",
                 .handle = [](const SharedExchange& exchange) { exchange->answer({}); },
                 .open_socket =
                     [this](const HttpRequest&) {
                       return [this](const SharedExchange& exchange) { begin_turn(exchange); };
                     },
                 .refuse_message = [](const HttpRequest&, int,
                                      const grpc::Status&) { return HttpAnswer{}; }});
    int ends[2];
    hold_that(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
              "there are sockets");
    client_ = ends[0];
    connection_ = make_http_connection(io_, ends[1], nullptr, "unix:", state_);
    connection_->start([this] { is_closed_ = true; });
    send(
        "GET /socket HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
  }
  ~Socket() {
    turn_ = nullptr;
    if (client_ >= 0) ::close(client_);
    connection_->close();
    io_.restart();
    io_.poll();
  }

  // Queues the bytes while the server does not read them.
  void send(std::string_view bytes) {
    if (unsent_.size() < kMostTurnMessage) unsent_ += bytes;
    poll();
  }
  void end_turn() {
    if (const SharedExchange turn = std::exchange(turn_, nullptr)) turn->end(websocket_text("."));
    poll();
  }
  void write() {
    if (turn_ == nullptr || std::exchange(is_writing_, true)) return;
    turn_->write(websocket_text("a piece"), [this](bool) { is_writing_ = false; });
    poll();
  }
  // The client goes, and nothing of the connection is left.
  void leave() {
    unsent_.clear();
    ::close(std::exchange(client_, -1));
    poll();
    if (turn_ != nullptr) end_turn();
    connection_->close();
    poll();
    hold_that(is_closed_, "a connection ends");
    hold_that(counters_.body_bytes == 0, "nothing is held after the end");
  }
  int num_turns() const { return num_turns_; }

 private:
  void begin_turn(const SharedExchange& exchange) {
    hold_that(turn_ == nullptr, "turns follow on one another");
    ++num_turns_;
    message_bytes_ = exchange->take_body().size();
    hold_that(message_bytes_ <= kMostTurnMessage, "a message has its bound");
    turn_ = exchange;
    is_writing_ = false;
    exchange->begin({});
  }
  // Runs both ends until neither has anything to do.
  void poll() {
    for (bool goes_on = true; goes_on;) {
      io_.restart();
      goes_on = io_.poll() > 0;
      const ssize_t sent = client_ < 0 || unsent_.empty()
                               ? 0
                               : ::send(client_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (sent > 0) unsent_.erase(0, static_cast<std::size_t>(sent));
      char buffer[4096];
      goes_on |= sent > 0;
      while (client_ >= 0 && ::recv(client_, buffer, sizeof(buffer), 0) > 0) goes_on = true;
      if (is_closed_) turn_ = nullptr;
      const std::int64_t held = counters_.body_bytes;
      hold_that(held >= 0, "what is released was held");
      hold_that(held <= static_cast<std::int64_t>(kMostTurnMessage), "one message is held at most");
      hold_that(turn_ == nullptr || held <= kMostAhead, "little is held during a turn");
    }
  }

  HttpOptions options_;
  HttpRoutes routes_;
  HttpCounters counters_;
  const OriginRules origins_;
  HttpServerState state_{options_, routes_, origins_, nullptr, kMostTurnMessage, counters_};
  boost::asio::io_context io_;
  int client_ = -1;
  std::shared_ptr<HttpConnection> connection_;
  std::string unsent_;
  SharedExchange turn_;  // null: none runs
  bool is_writing_ = false;
  bool is_closed_ = false;
  std::size_t message_bytes_ = 0;
  int num_turns_ = 0;
};

}  // namespace

bool try_web_turns(std::string_view bytes) {
  constexpr int kText = 0x81, kPart = 0x01, kNext = 0x00, kLast = 0x80, kPing = 0x89, kClose = 0x88;
  Script script(bytes);
  Socket socket;
  const auto size = [&] { return std::size_t{1} << (script.next() % 18); };
  const auto zeros = [&](std::size_t count) { socket.send(std::string(count, '\0')); };
  while (!script.is_over()) {
    switch (script.next() % 10) {
      case 0:
        socket.send(script.take(script.next()));
        break;
      case 1: {
        const std::size_t whole = size();
        socket.send(frame_head(kText, whole));
        zeros(whole);
        break;
      }
      case 2:  // a part of a frame, with the rest or not
        socket.send(frame_head(kText, size()));
        zeros(size());
        break;
      case 3: {
        const std::size_t part = size();
        socket.send(frame_head(script.next() % 2 == 0 ? kPart : kNext, part));
        zeros(part);
        break;
      }
      case 4:
        socket.send(frame_head(kLast, 0));
        break;
      case 5:
        socket.send(frame_head(kPing, 3));
        zeros(3);
        break;
      case 6:
        zeros(size());
        break;
      case 7:
        socket.write();
        break;
      case 8:
        socket.end_turn();
        break;
      default:
        if (script.next() % 16 == 0) socket.send(frame_head(kClose, 0));
    }
  }
  const bool has_turns = socket.num_turns() > 0;
  socket.leave();
  return has_turns;
}

}  // namespace lintel::fuzz
