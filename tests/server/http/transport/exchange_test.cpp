// SPDX-License-Identifier: Apache-2.0
// The way of an answer from its handler to the socket, and its threads.
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <latch>
#include <optional>
#include <thread>

#include "server/http/transport/connection_exchange.h"
#include "server/http/transport/http_connection.h"
#include "server/http/transport/http_listener.h"
#include "server/http/transport/websocket.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/websocket_client.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Notes what it is asked for, and may keep its strand busy with a piece.
class NotedConnection final : public AnsweringConnection {
 public:
  explicit NotedConnection(boost::asio::io_context& io) : strand_(io.get_executor()) {}

  ConnectionStrand strand() override { return strand_; }
  bool is_shut() const override { return false; }
  void send_whole(HttpAnswer, const HttpRequest&) override {}
  void refuse_exchange(const HttpRequest&, const grpc::Status&) override {}
  void begin_pieces(const HttpAnswer&, const HttpRequest&) override { noted += "begin "; }
  void write_piece(std::string_view piece, std::function<void(bool)> taken) override {
    if (on_piece) on_piece(piece);
    noted += std::string(piece) + ' ';
    taken(true);
  }
  void end_pieces(std::string_view) override { noted += "end"; }
  void when_gone(std::function<void()>) override {}
  void shut() override {}
  void fail() noexcept override {}

  std::string noted;
  std::function<void(std::string_view)> on_piece;

 private:
  const ConnectionStrand strand_;
};

// A connection with one request, whose exchange the test has, and the socket of its client.
struct OneRequest {
  OneRequest() {
    routes.add({.method = "GET", .path = "/", .handle = [this](const SharedExchange& asked) {
                  exchange = asked;
                }});
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    client = ends[0];
    connection = make_http_connection(io, ends[1], nullptr, "ipv4:127.0.0.1:1", house);
    connection->start([] {});
    const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    REQUIRE(::send(client, request.data(), request.size(), 0) ==
            static_cast<ssize_t>(request.size()));
    while (exchange == nullptr) io.run_one();
    io.poll();
  }
  ~OneRequest() {
    connection->close();
    io.poll();
    ::close(client);
  }

  // The bytes that are there for the client now.
  std::string received() const {
    char bytes[4096];
    const ssize_t size = ::recv(client, bytes, sizeof bytes, MSG_DONTWAIT);
    return size < 0 ? "nothing" : std::string(bytes, static_cast<std::size_t>(size));
  }

  HttpOptions options;
  HttpRoutes routes;
  OriginRules origins{{}, ListenAddress{}};
  HttpCounters counters;
  HttpServerState house{options, routes, origins, nullptr, 1 << 20, counters};
  boost::asio::io_context io;
  std::shared_ptr<HttpConnection> connection;
  SharedExchange exchange;
  int client = -1;
};

}  // namespace

TEST_CASE("a call on an exchange runs at once if no other thread is on its connection") {
  boost::asio::io_context io;  // of no thread
  const auto connection = std::make_shared<NotedConnection>(io);
  ConnectionExchange exchange(connection, {}, "");
  int taken = 0;
  exchange.begin({});
  exchange.write("one", [&taken](bool more) { taken += more ? 1 : 0; });
  exchange.write("two", [&taken](bool more) { taken += more ? 1 : 0; });
  exchange.end("");
  CHECK(connection->noted == "begin one two end");
  CHECK(taken == 2);
  CHECK(io.poll() == 0);  // nothing is left to do there
}

TEST_CASE("a call on an exchange never waits for another thread, and calls keep their order") {
  boost::asio::io_context io;
  const auto connection = std::make_shared<NotedConnection>(io);
  ConnectionExchange exchange(connection, {}, "");
  std::latch on_it(1), others_asked(1);
  connection->on_piece = [&](std::string_view piece) {
    if (piece != "slow") return;
    on_it.count_down();
    others_asked.wait();
  };
  exchange.begin({});
  std::thread other([&] { exchange.write("slow", [](bool) {}); });
  on_it.wait();
  exchange.write("one", [](bool) {});
  exchange.end("");  // returns, though the other thread is on the connection
  others_asked.count_down();
  other.join();
  io.restart();  // it has stopped when it had nothing to do
  io.run();
  CHECK(connection->noted == "begin slow one end");
}

TEST_CASE("a piece is one write, on its way when write returns, and wakes no thread of HTTP's") {
  OneRequest f;
  f.exchange->begin({200, {{"content-type", "text/plain"}}, ""});
  CHECK(f.received() == "nothing");  // the head goes with the first piece
  bool taken = false;
  f.exchange->write("one", [&taken](bool more) { taken = more; });
  CHECK(taken);
  const std::string first = f.received();
  CHECK(first.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(first.ends_with("\r\n\r\n3\r\none\r\n"));
  for (int i = 0; i < 100; ++i) {
    f.exchange->write("more", [](bool) {});
    REQUIRE(f.received() == "4\r\nmore\r\n");
  }
  f.exchange->end("last");
  CHECK(f.received() == "4\r\nlast\r\n0\r\n\r\n");
  CHECK(f.io.poll() == 0);
}

TEST_CASE("pieces that the socket does not take gather, and go out in large writes once it does") {
  OneRequest f;
  f.exchange->begin({});
  const std::string piece(1000, 'x');
  int pieces = 0;
  bool taken = true;
  while (taken && pieces < 10'000) {
    taken = false;
    f.exchange->write(piece, [&taken](bool) { taken = true; });
    ++pieces;
  }
  REQUIRE(pieces < 10'000);  // the client's socket is full, and so is what may gather
  std::string bytes;
  std::size_t handlers = 0;
  const auto drain = [&] {
    for (std::string some; (some = f.received()) != "nothing";) bytes += some;
  };
  while (!taken) {
    drain();
    handlers += f.io.poll();
  }
  drain();
  std::string expected;
  for (int i = 0; i < pieces; ++i) expected += "3e8\r\n" + piece + "\r\n";
  const std::size_t body = bytes.find("\r\n\r\n") + 4;
  CHECK((bytes.substr(body) == expected));
  CHECK(handlers < 10);
}

// The listener's one thread fails an allocation later on, wherever that is: between two requests,
// in the next one, or where Asio has a handler to run.
TEST_CASE("any failed allocation on a thread of HTTP: connections end and the thread continues",
          "[threat-30]") {
  HttpOptions options;
  options.listen = ListenAddress{"127.0.0.1", 0, ""};
  options.threads = 1;
  options.idle_timeout_ms = std::chrono::milliseconds(500);
  options.header_timeout_ms = std::chrono::milliseconds(500);
  options.body_timeout_ms = std::chrono::milliseconds(500);
  const bool in_pieces = GENERATE(false, true);
  const bool is_pipelined = GENERATE(false, true);
  HttpRoutes routes;
  std::atomic<std::size_t> successes{0};
  routes.add({.method = "POST", .path = "/fail-later", .handle = [&](const SharedExchange& asked) {
                asked->answer({200, {}, ""});
                thread_local std::optional<FailingAllocation> failing;
                failing.emplace(successes);
              }});
  routes.add({.method = "POST", .path = "/echo", .handle = [&](const SharedExchange& asked) {
                if (!in_pieces) return asked->answer({200, {}, asked->take_body()});
                asked->begin({200, {}, "a piece"});
                asked->write(asked->take_body(), [asked](bool) { asked->end(""); });
              }});
  HttpCounters counters;
  HttpListener listener({options, routes, nullptr, nullptr, 1 << 20, counters});
  listener.start();
  const std::string echo = post_text("/echo", std::string(5000, 'x'), "text/plain",
                                     "X-A: " + std::string(100, 'y') + "\r\n");
  std::uint64_t failed = 0;
  for (successes = 0; successes < 150; ++successes) {
    CAPTURE(successes.load());
    HttpClient kept(listener.port());
    kept.send(post_text("/fail-later", "", "text/plain") + (is_pipelined ? echo : ""));
    // The one before may fail here.
    if (kept.read().status == 0) continue;
    if (!is_pipelined) kept.send(echo);
    HttpClient other(listener.port());
    other.send(echo);
    // Each is answered or its connection ends.
    for (HttpClient* const client : {&kept, &other}) {
      const HttpReply reply = client->read();
      CHECK((reply.status == 0 || reply.status >= 200));
      client->close();
    }
    REQUIRE(eventually([&] { return request(listener.port(), echo).status == 200; }));
    REQUIRE(eventually([&] { return counters.connections.load() == 0; }));
    failed = counters.exceptions.load();
  }
  CHECK(failed > 10);
  CHECK(counters.body_bytes.load() == 0);
  listener.stop();
}

TEST_CASE("any failed allocation on a WebSocket: it ends, and the thread continues",
          "[threat-30]") {
  HttpOptions options;
  options.listen = ListenAddress{"127.0.0.1", 0, ""};
  options.threads = 1;
  options.idle_timeout_ms = std::chrono::milliseconds(500);
  options.body_timeout_ms = std::chrono::milliseconds(500);
  HttpRoutes routes;
  std::atomic<std::size_t> successes{0};
  routes.add({.method = "GET",
              .path = "/socket",
              .handle = [](const SharedExchange& asked) { asked->answer({}); },
              .open_socket = [&](const HttpRequest&) -> HttpHandler {
                return [&](const SharedExchange& asked) {
                  const std::string message = asked->take_body();
                  asked->begin({});
                  asked->write(websocket_text("first"),
                               [asked](bool) { asked->end(websocket_text("last")); });
                  if (message != "fail later") return;
                  thread_local std::optional<FailingAllocation> failing;
                  failing.emplace(successes);
                };
              },
              .refuse_message =
                  [](const HttpRequest&, int, const grpc::Status&) {
                    return HttpAnswer{500, {}, websocket_text("refused")};
                  }});
  HttpCounters counters;
  HttpListener listener({options, routes, nullptr, nullptr, 1 << 20, counters});
  listener.start();
  const auto is_served = [&] {
    WebSocketClient client(listener.port(), "/socket");
    client.send("a message");
    return client.handshake().status == 101 && client.read().payload == "first" &&
           client.read().payload == "last";
  };
  std::uint64_t failed = 0;
  for (successes = 0; successes < 60; ++successes) {
    CAPTURE(successes.load());
    WebSocketClient client(listener.port(), "/socket");
    if (client.handshake().status != 101) continue;  // the one before may fail here
    client.send("fail later");
    client.send_raw(client_frame(kText, std::string(5000, 'x'), false) +
                    client_frame(kPing, "ping") + client_frame(kContinuation, "x") +
                    client_frame(kClose, ""));
    int opcode = 0;
    while ((opcode = client.read().opcode) != -1 && opcode != kClose) {
      CHECK((opcode == kText || opcode == kPong));
    }
    client.leave();
    REQUIRE(eventually(is_served));
    REQUIRE(eventually([&] { return counters.connections.load() == 0; }));
    failed = counters.exceptions.load();
  }
  CHECK(failed > 10);
  CHECK(counters.body_bytes.load() == 0);
  listener.stop();
}

TEST_CASE("an exception from the callback of a taken piece ends the connection alone") {
  OneRequest one;
  one.exchange->begin({200, {}, ""});
  one.exchange->write("piece", [](bool) { throw std::runtime_error("no more"); });
  CHECK(one.counters.exceptions.load() == 1);
  one.io.poll();
  bool is_gone = false;
  one.exchange->when_gone([&] { is_gone = true; });
  CHECK(is_gone);
}

}  // namespace lintel::testing
