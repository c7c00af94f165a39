// SPDX-License-Identifier: Apache-2.0
// Where a request ends: bodies that are announced and not taken, framings that two readers would
// understand in two ways, and headers, chunk extensions and trailers without end.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tuple>
#include <vector>

#include "tests/server/support/http_client.h"
#include "tests/server/support/memory_in_use.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

const std::string kModelList = "/lintel.v1.ModelService/List";
// A body's content that must never be taken for a request.
const std::string kHidden = "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string head_of(const std::string& method, const std::string& path,
                    const std::string& headers) {
  return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}

std::string length_of(const std::string& body) {
  return "Content-Length: " + std::to_string(body.size()) + "\r\n";
}

// Sends `text`: its one answer, after which the server has closed and said nothing else.
HttpReply only_reply(int port, const std::string& text) {
  HttpClient client(port);
  client.send(text);
  HttpReply reply = client.read();
  CHECK(reply.header("connection") == "close");
  CHECK(client.ended());
  return reply;
}

// Sends a head and then pieces, at most so many bytes, until the server answers. Returns what it
// says and the most memory that the process took meanwhile.
struct Flooded {
  std::string answer;
  std::size_t sent = 0, memory = 0;
};
Flooded flood(int port, const std::string& head, const std::string& piece, std::size_t most) {
  const int fd = connect_to(port);
  const std::size_t before = memory_in_use();
  Flooded flooded;
  const auto send_all = [fd](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(size));
    }
    return true;
  };
  const auto is_answered = [fd] {
    pollfd waited{fd, POLLIN, 0};
    return ::poll(&waited, 1, 0) == 1;
  };
  bool goes_on = send_all(head);
  for (; goes_on && flooded.sent < most && !is_answered(); flooded.sent += piece.size()) {
    goes_on = send_all(piece);
    if (const std::size_t now = memory_in_use(); now > before) {
      flooded.memory = std::max(flooded.memory, now - before);
    }
  }
  pollfd waited{fd, POLLIN, 0};
  if (flooded.sent < most && ::poll(&waited, 1, /*ms=*/60'000) == 1) {
    flooded.answer.resize(4096);
    const ssize_t size = ::recv(fd, flooded.answer.data(), flooded.answer.size(), 0);
    flooded.answer.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  }
  ::close(fd);
  return flooded;
}

}  // namespace

TEST_CASE("chunk extensions and trailers without end are answered 400 within 1 MiB of memory",
          "[threat-27]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  CHECK(post(port, kModelList, "{}").status == 200);  // gRPC's threads for calls are there
  const std::string head = head_of("POST", kModelList,
                                   "Content-Type: application/json\r\n"
                                   "Transfer-Encoding: chunked\r\n");
  const std::string many(4096, 'a');
  const std::vector<std::tuple<const char*, std::string, std::string>> cases = {
      {"an extension", "1;a=", many},
      {"an extension in pieces", "1;a=", "aaa"},
      {"a quoted extension", "1;a=\"", many},
      {"the last chunk's extension", "0;a=", many},
      {"one trailer", "0\r\na: ", many},
      {"one trailer in pieces", "0\r\na: ", "aaa"},
      {"many trailers", "0\r\n", "a: b\r\nc: d\r\ne: f\r\n"},
      {"many trailers in pieces", "0\r\n", "a: b\r\n"}};
  for (const auto& [what, begin, piece] : cases) {
    INFO(what);
    const Flooded flooded = flood(port, head + begin, piece, std::size_t{32} << 20);
    INFO(what << ": " << (flooded.sent >> 10) << " KiB sent, " << (flooded.memory >> 10)
              << " KiB of memory");
    CHECK_THAT(flooded.answer, Catch::StartsWith("HTTP/1.1 400 ") && Contains("connection: close"));
    CHECK(flooded.memory < (std::size_t{1} << 20));
    CHECK(comes_to(server, "lintel_http_connections", 0));
    CHECK(comes_to(server, "lintel_http_body_bytes", 0));
  }
}

TEST_CASE("headers without end are answered 431 within 1 MiB of memory, however they are cut",
          "[threat-27]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  for (const std::string piece : {"a: b\r\n", "\r\na: b", "aaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    // A header that is whole once the next begins.
    const std::string head = "GET / HTTP/1.1\r\nHost: localhost\r\na: b";
    const Flooded flooded =
        flood(port, piece.starts_with('a') ? head + "\r\n" : head, piece, std::size_t{8} << 20);
    CHECK_THAT(flooded.answer, Catch::StartsWith("HTTP/1.1 431 "));
    CHECK(flooded.memory < (std::size_t{1} << 20));
  }
}

TEST_CASE("a request has at most 100 headers, and a refused one holds no memory for them",
          "[threat-27]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const auto with_headers = [](int count) {
    std::string headers;
    for (int i = 2; i < count; ++i) headers += "a: b\r\n";  // besides Host and Content-Length
    return headers;
  };
  const auto request_with = [&](int count) {
    return head_of(
        "POST", kModelList,
        with_headers(count - 1) + "Content-Length: 2\r\n" + "Content-Type: application/json\r\n");
  };
  CHECK(request(port, request_with(100) + "{}").status == 200);
  const HttpReply refused = only_reply(port, request_with(101) + "{}");
  CHECK(refused.status == 431);
  CHECK_THAT(refused.body, Contains("100 headers"));
  // Headers up to --http-max-header-size, on many connections that then wait with their body.
  std::vector<std::unique_ptr<HttpClient>> clients;
  const std::size_t before = memory_in_use();
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port));
    clients.back()->send(head_of("POST", kModelList, [] {
      std::string headers = "Content-Length: 2\r\n";
      for (int k = 0; k < 3900; ++k) headers += "a:\r\n";
      return headers;
    }()));
  }
  for (const auto& client : clients) CHECK(client->read().status == 431);
  const std::size_t now = memory_in_use();
  INFO("100 connections with 3,900 headers: " << ((now > before ? now - before : 0) >> 10)
                                              << " KiB of memory");
  CHECK(now < before + (std::size_t{100} * (64 << 10)));
}

TEST_CASE("a transfer-encoding that is not chunked is answered 400, and its body is no request",
          "[threat-29]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  for (const std::string coding : {"identity",
                                   "gzip",
                                   "xchunked",
                                   "chunked, identity",
                                   "identity, chunked",
                                   "chunked, chunked",
                                   "chunked;q=1",
                                   "gzip, chunked",
                                   "\"chunked\"",
                                   "chunked,",
                                   ",chunked",
                                   "",
                                   "chunked x",
                                   "identity\r\nTransfer-Encoding: chunked",
                                   "chunked\r\nTransfer-Encoding: identity",
                                   "chunked\r\nTransfer-Encoding: chunked",
                                   "\r\n chunked",
                                   "chunked\r\n ",
                                   "chun\r\n ked",
                                   "chunked\r\nContent-Length: 5",
                                   "chunked\r\nContent-Length: 0"}) {
    CAPTURE(coding);
    for (const std::string path : {"/v2/health/live", "/lintel.v1.ModelService/List", "/nothing"}) {
      const HttpReply refused = only_reply(
          port, head_of("POST", path, "Transfer-Encoding: " + coding + "\r\n") + kHidden + kHidden);
      CHECK(refused.status == 400);
      CHECK(refused.whole);
    }
  }
}

TEST_CASE("framings that contradict themselves are answered 400, and their body is no request",
          "[threat-29]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  for (const std::string framing :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 0\r\nContent-Length: 5", "Content-Length: 5, 5", "Content-Length: +5",
        "Content-Length: 0x5", "Content-Length: ", "Content-Length: -1", "Content-Length: \r\n 5",
        "Content-Length: 18446744073709551616", "Content-Length : 5", "Transfer-Encoding : chunked",
        "Content-Length: 5\r\nX: y\r\n z"}) {
    CAPTURE(framing);
    CHECK(only_reply(port, head_of("GET", "/v2/health/live", framing + "\r\n") + kHidden).status ==
          400);
    // HTTP/1.0 has no chunks.
    CHECK(only_reply(port, "POST " + kModelList +
                               " HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked"
                               "\r\n\r\n0\r\n\r\n" +
                               kHidden)
              .status == 400);
  }
}

TEST_CASE("malformed chunks are answered 400, and the bytes after them are no request",
          "[threat-29]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  for (const std::string chunks :
       {"2\n{}\n0\n\n", "2\r\n{}\n0\r\n\r\n", "0x2\r\n{}\r\n0\r\n\r\n", "-2\r\n{}\r\n0\r\n\r\n",
        "2;a=\"\n\"\r\n{}\r\n0\r\n\r\n", "2;\r\n{}\r\n0\r\n\r\n", "2 \r\n{}\r\n0\r\n\r\n",
        "10000000000000002\r\n{}\r\n0\r\n\r\n", "2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
        "2\r\n{}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "2\r\n{}\r\n0\r\na: b\r\n c\r\n\r\n"}) {
    CAPTURE(chunks);
    const HttpReply refused = only_reply(
        port, head_of("POST", kModelList,
                      "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n") +
                  chunks + kHidden);
    CHECK(refused.status == 400);
  }
}

TEST_CASE("an open route takes no body: 413 by the head, and the body is no request",
          "[threat-28]") {
  const TokenFile file;
  ServerOptions options = with_http();
  const bool with_tokens = GENERATE(false, true);
  if (with_tokens) options.security.auth_tokens = file.path;
  options.http.memory_bytes = 1 << 20;
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  for (const char* const path :
       {"/", "/style.css", "/v2/health/live", "/v2/health/ready", "/v2/models/bytes/ready"}) {
    CAPTURE(path);
    CHECK(request(port, head_of("GET", path, "Content-Length: 0\r\n")).status == 200);
    CHECK(only_reply(port, head_of("GET", path, length_of(kHidden)) + kHidden).status == 413);
    CHECK(only_reply(port,
                     head_of("GET", path, "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n" + kHidden)
              .status == 413);
    CHECK(only_reply(port, head_of("GET", path, "Content-Length: 4000000\r\n")).status == 413);
    CHECK(only_reply(port, head_of("GET", path, "Expect: 100-continue\r\nContent-Length: 1\r\n"))
              .status == 413);
  }
  // Bodies on open routes leave those their memory that may send some.
  std::vector<std::unique_ptr<HttpClient>> crowd;
  for (int i = 0; i < 16; ++i) {
    crowd.push_back(std::make_unique<HttpClient>(port));
    crowd.back()->send(head_of("GET", "/v2/health/live", "Content-Length: 200000\r\n") +
                       std::string(100'000, ' '));
  }
  for (const auto& one : crowd) CHECK(one->read().status == 413);
  CHECK(values(server.server()).at("lintel_http_body_bytes") == 0);
  const std::string token = "Authorization: Bearer token-root\r\n";
  CHECK(
      post(port, kModelList, std::string(500'000, ' ') + "{}", "application/json", token).status ==
      200);
}

TEST_CASE("a request that is refused unread closes its connection, and its body is no request",
          "[threat-29]") {
  const TokenFile file;
  ServerOptions options = with_http();
  options.security.auth_tokens = file.path;
  options.connections.max_message_bytes = 4096;
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  const std::string token = "Authorization: Bearer token-root\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const std::vector<std::tuple<std::string, std::string, std::string, int>> cases = {
      {"POST", kModelList, length_of(kHidden), 401},
      {"POST", kModelList, chunked, 401},
      {"POST", kModelList, length_of(kHidden) + "Origin: https://example.org\r\n", 403},
      {"POST", "/nothing", length_of(kHidden), 404},
      {"POST", "/nothing", chunked, 404},
      {"PUT", kModelList, length_of(kHidden), 405},
      {"GET", "/v2/health/live", length_of(kHidden), 413},
      {"POST", kModelList, token + "Content-Length: 4097\r\n", 413},
      {"POST", kModelList, token + length_of(kHidden) + "Expect: nothing\r\n", 417},
      {"POST", kModelList, chunked + "Content-Length: 1\r\n", 400}};
  int refusals = 0;
  for (const auto& [method, path, headers, status] : cases) {
    CAPTURE(method, path, headers);
    const HttpReply refused = only_reply(port, head_of(method, path, headers) + kHidden + kHidden);
    CHECK(refused.status == status);
    CHECK(values(server.server()).at(R"(lintel_http_answers_total{status="2xx"})") == 0);
    CHECK(values(server.server()).at(R"(lintel_http_answers_total{status="4xx"})") == ++refusals);
  }
}

TEST_CASE("a preflight with a body closes its connection, and its body is no request",
          "[threat-29]") {
  ServerOptions options = with_http();
  options.http.cors_origins = {"https://example.org"};
  TestServer server({"bytes"}, options);
  const HttpReply reply =
      only_reply(server.server().http_port(),
                 head_of("OPTIONS", kModelList,
                         "Origin: https://example.org\r\nAccess-Control-Request-Method: POST\r\n" +
                             length_of(kHidden)) +
                     kHidden);
  CHECK(reply.status == 204);
}

}  // namespace lintel::testing
