// SPDX-License-Identifier: Apache-2.0
// Faults over HTTP: requests that make no sense, clients that say nothing, clients that read
// nothing.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>

#include "tests/chaos/chaos_server.h"
#include "tests/chaos/sockets.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;

ChaosServer::Options with_http(std::vector<std::string> more = {}) {
  ChaosServer::Options options;
  options.http = true;
  options.flags = std::move(more);
  return options;
}

int threads_of(pid_t pid) {
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(tasks), {}));
}

// Bytes of addresses that a process has mapped.
rlim_t address_space_of(pid_t pid) {
  std::ifstream pages("/proc/" + std::to_string(pid) + "/statm");
  rlim_t count = 0;
  pages >> count;
  return count * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

std::string post(const std::string& path, const std::string& type, const std::string& body,
                 const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

const std::string kGenerate = "/lintel.v1.GenerationService/Generate";

// A message as an envelope of Connect's.
std::string sealed(const google::protobuf::Message& message) {
  const std::string bytes = message.SerializeAsString();
  return std::string(3, '\0') + static_cast<char>(bytes.size() >> 8) +
         static_cast<char>(bytes.size()) + bytes;
}

// Requests that are right, to start from.
std::vector<std::string> right_requests() {
  const std::string json =
      R"({"prompt":{"tokens":{"ids":[1,2]}},"maxNewTokens":3,"sampling":{"seed":"7"}})";
  const std::string call = sealed(tokens_request(3, 4));
  return {post(kGenerate, "application/json", json),
          post(kGenerate, "application/connect+proto", call),
          post(kGenerate, "application/grpc-web+proto", call),
          post(kGenerate, "application/grpc-web-text", "AAAAAAA="),
          post("/lintel.v1.ModelService/List", "application/json", "{}"),
          post("/lintel.v1.ModelService/Get", "application/proto", "\n\6tokens"),
          "POST /lintel.v1.ModelService/List HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
          "application/json"
          "\r\nTransfer-Encoding: chunked\r\n\r\n2;ext=1\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
          "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "OPTIONS /lintel.v1.ModelService/List HTTP/1.1\r\nHost: localhost\r\nOrigin: "
          "http://localhost\r\n"
          "Access-Control-Request-Method: POST\r\n\r\n",
          // A turn over a WebSocket, under a mask of zeros.
          "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n"
          "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" +
              std::string("\x81\xa9\0\0\0\0", 6) + R"({"type":"response.create","input":"abcd"})",
          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
}

// One of them with some bytes changed, taken out, doubled, or put where they do not belong.
std::string malformed(const std::vector<std::string>& right, std::mt19937_64& random) {
  std::string text = right[random() % right.size()];
  static const std::string kTokens[] = {"\r\n",
                                        "\r\n\r\n",
                                        ":",
                                        " ",
                                        "%00",
                                        "/../",
                                        "HTTP/",
                                        "\0",
                                        "\xff",
                                        ";",
                                        "[",
                                        "{",
                                        "chunked",
                                        "Content-Length: 99999999999999999999\r\n",
                                        "Content-Length: -1\r\n",
                                        "Transfer-Encoding: chunked\r\n",
                                        "Host: y\r\n",
                                        "Connect-Timeout-Ms: 1\r\n"};
  for (std::size_t k = random() % 6 + 1; k > 0 && !text.empty(); --k) {
    const std::size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, random() % 16);
        break;
      case 2:
        text.insert(at, text.substr(0, random() % 64));
        break;
      case 3:
        text.insert(at, kTokens[random() % std::size(kTokens)]);
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

// A whole request and its status line. The first makes gRPC's threads for calls within the process.
std::string list_models(int port) {
  const Socket socket = Socket::connect(port);
  socket.write(post("/lintel.v1.ModelService/List", "application/json", "{}"));
  return socket.read_some().substr(0, 15);
}

void malformed_requests(int count) {
  const std::uint64_t seed = std::random_device()();
  std::cout << "chaos: " << count << " malformed HTTP requests with seed " << seed << std::endl;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  ChaosServer server(with_http(
      {"--http-header-timeout", "1s", "--http-body-timeout", "1s", "--log-level", "warn"}));
  const std::vector<std::string> right = right_requests();
  const int port = server.http_port();
  constexpr int kAtATime = 64;
  std::map<std::string, int> answers;
  const auto send_some = [&](int requests) {
    for (int sent = 0; sent < requests;) {
      std::vector<Socket> sockets;
      for (int i = 0; i < kAtATime && sent < requests; ++i, ++sent) {
        sockets.push_back(Socket::connect(port));
        sockets.back().try_write(malformed(right, random));
        // Most say that this is all; the others wait for the server to lose its patience.
        if (random() % 256 != 0) ::shutdown(sockets.back().fd(), SHUT_WR);
      }
      for (const Socket& socket : sockets) {
        const std::string answer = socket.read_some(milliseconds(10'000));
        ++answers[answer.starts_with("HTTP/1.1 ") ? answer.substr(9, 3) : "none"];
      }
    }
  };
  send_some(count / 5);
  server.take_baseline();
  Neighbour neighbour(server);
  send_some(count - count / 5);
  neighbour.stop();
  std::string counts = std::to_string(count) + " malformed HTTP requests:";
  for (const auto& [status, number] : answers) {
    counts += " " + status + " " + std::to_string(number);
    CHECK(status != "500");
  }
  CHECK(neighbour.disturbed() == 0);
  server.check_recovered(counts);
  CHECK(server.stop() == 0);
}

}  // namespace

TEST_CASE("10,000 malformed HTTP requests: none affects the server or other requests",
          "[threat-26]") {
  malformed_requests(10'000);
}

TEST_CASE("100,000 malformed HTTP requests: none affects the server", "[.long]") {
  malformed_requests(100'000);
}

TEST_CASE("an HTTP body for which there is no memory ends its connection, and the server continues",
          "[threat-30]") {
  ChaosServer server(
      with_http({"--max-message-size", "2147483647", "--http-memory", "1099511627776"}));
  const int port = server.http_port();
  CHECK(list_models(port) == "HTTP/1.1 200 OK");
  server.take_baseline();
  const std::string head =
      "POST /lintel.v1.ModelService/List HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nContent-Length: 2000000000\r\n\r\n";
  // From here on the process may have 512 MiB of addresses more, of which the heaps of threads
  // that have none yet take a part.
  const rlim_t limit = address_space_of(server.pid()) + (rlim_t{512} << 20);
  const rlimit limits = {limit, limit};
  REQUIRE(prlimit(server.pid(), RLIMIT_AS, &limits, nullptr) == 0);

  // Bodies that are only announced take nothing.
  std::vector<Socket> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(Socket::connect(port));
    clients.back().write(head + "{}");
  }
  CHECK(list_models(port) == "HTTP/1.1 200 OK");
  CHECK(server.metric("lintel_http_exceptions_total") == 0);

  Socket sender = Socket::connect(port);
  sender.write(head);
  const std::string piece(1 << 20, ' ');
  int sent = 0;
  while (sent < 1024 && sender.try_write(piece)) ++sent;
  CHECK(sent < 1024);
  CHECK(eventually([&] { return server.metric("lintel_http_exceptions_total") >= 1; }));
  CHECK(list_models(port) == "HTTP/1.1 200 OK");
  clients.clear();
  sender.reset();
  server.check_recovered("HTTP bodies beyond the process's memory");
}

TEST_CASE("HTTP clients that send chunk extensions without end hold little memory",
          "[smoke][threat-27]") {
  ChaosServer server(with_http());
  const int port = server.http_port();
  const auto flood = [&](int megabytes) {
    const std::string piece(1 << 20, 'a');
    std::vector<Socket> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(Socket::connect(port));
      clients.back().write(
          "POST /lintel.v1.ModelService/List HTTP/1.1\r\nHost: localhost\r\n"
          "Transfer-Encoding: chunked\r\n\r\n1;a=");
      for (int k = 0; k < megabytes && clients.back().try_write(piece); ++k) {
      }
    }
    return clients;
  };
  flood(1);
  server.take_baseline();
  const std::vector<Socket> clients = flood(16);
  const std::size_t now = server.usage().rss_bytes;
  const std::size_t more = now - std::min(now, server.baseline().rss_bytes);
  std::cout << "chaos: 8 HTTP clients with 16 MiB of a chunk extension: " << (more >> 10)
            << " KiB more memory\n";
  CHECK(more < (std::size_t{16} << 20));
  server.check_recovered("HTTP clients with endless chunk extensions");
}

TEST_CASE(
    "500 clients that send a byte now and then are disconnected, and others are served meanwhile",
    "[threat-26]") {
  ChaosServer server(
      with_http({"--http-header-timeout", "500ms", "--http-max-client-connections", "600"}));
  const int port = server.http_port();
  CHECK(list_models(port) == "HTTP/1.1 200 OK");
  server.take_baseline();
  const int threads = threads_of(server.pid());
  std::vector<Socket> slow;
  for (int i = 0; i < 500; ++i) {
    slow.push_back(Socket::connect(port));
    slow.back().try_write("POST / HTTP/1.1\r\nHost: ");
  }
  CHECK(list_models(port) == "HTTP/1.1 200 OK");
  CHECK(threads_of(server.pid()) <= threads);
  int refused = 0;
  for (const Socket& one : slow) {
    one.try_write("x");
    refused += one.read_some().starts_with("HTTP/1.1 408");
  }
  CHECK(refused == 500);
  slow.clear();
  server.check_recovered("500 HTTP clients slower than the headers' timeout");
}

TEST_CASE(
    "500 HTTP clients that read nothing of endless streams hold few threads and little memory",
    "[threat-34]") {
  ChaosServer server(with_http({"--http-max-client-connections", "600", "--outbox-tokens", "256",
                                "--max-sessions", "2000"}));
  const int port = server.http_port();
  const auto open_all = [&] {
    v1::GenerateRequest request = endless_request();
    request.set_top_log2_probs(40);  // large messages fill the memory for them sooner
    request.set_max_tokens_per_message(8);
    const std::string text = post(kGenerate, "application/connect+proto", sealed(request));
    std::vector<Socket> readers;
    for (int i = 0; i < 500; ++i) {
      readers.push_back(Socket::connect(port, /*receive_buffer_bytes=*/4096));
      readers.back().write(text);
    }
    for (const Socket& one : readers) CHECK(one.read_some().starts_with("HTTP/1.1 200"));
    return readers;
  };
  open_all();
  CHECK(eventually([&] { return server.metric("lintel_streams") == 0; }));
  server.take_baseline();
  const int threads = threads_of(server.pid());
  std::vector<Socket> readers = open_all();
  // Full: nothing more is generated for any of them.
  double before = -1;
  int still = 0;
  CHECK(eventually(
      [&] {
        const double now = server.metric("lintel_tokens_total", "generated");
        still = now == std::exchange(before, now) ? still + 1 : 0;
        return still > 20;
      },
      std::chrono::seconds(240)));
  CHECK(server.metric("lintel_streams") == 500);
  const std::size_t more = server.usage().rss_bytes - server.baseline().rss_bytes;
  std::cout << "chaos: 500 slow HTTP readers: " << threads_of(server.pid()) - threads
            << " more threads, " << (more >> 10) << " KiB more memory\n";
  CHECK(threads_of(server.pid()) <= threads);
  CHECK(more < std::size_t{500} * (256 << 10));
  CHECK(server.generate_reference() == server.reference());
  readers.clear();
  server.check_recovered("500 HTTP clients that read nothing");
}

}  // namespace lintel::testing
