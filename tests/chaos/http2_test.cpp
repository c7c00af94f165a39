// SPDX-License-Identifier: Apache-2.0
// Malformed HTTP/2 and gRPC framing, on plain sockets.
#include <functional>
#include <iostream>
#include <thread>

#include "tests/chaos/chaos_server.h"
#include "tests/chaos/random_messages.h"
#include "tests/chaos/sockets.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using namespace http2;

constexpr std::string_view kGenerate = "/lintel.v1.GenerationService/Generate";

// Header fields without the path, or with a field in place of another.
std::string headers(const std::string& method, const std::string& path, const std::string& type) {
  return field(":method", method) + field(":scheme", "http") + field(":path", path) +
         field(":authority", "localhost") + field("content-type", type) + field("te", "trailers");
}

struct Attack {
  const char* what;
  int messages;  // frames, about
  std::string bytes;
};

std::string repeated(int times, const std::function<std::string(int)>& one) {
  std::string all;
  for (int i = 0; i < times; ++i) all += one(i);
  return all;
}

std::vector<Attack> attacks() {
  const std::string request = tokens_request(1, 20).SerializeAsString();
  const std::string endless = endless_request().SerializeAsString();
  const std::string path(kGenerate);
  const auto open = [&](std::uint32_t stream) {
    return frame(kHeaders, kEndHeaders, stream, call_headers(path));
  };
  const auto with_message = [&](const std::string& message) {
    return hello() + open(1) + frame(kData, kEndStream, 1, message);
  };
  const auto with_headers = [&](const std::string& block) {
    return hello() + frame(kHeaders, kEndHeaders | kEndStream, 1, block);
  };
  return {
      {"nothing at all", 0, ""},
      {"a wrong preface", 1, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"},
      {"half a preface", 1, std::string(kPreface.substr(0, 10))},
      {"TLS on a plain port", 1, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)},
      {"no SETTINGS after the preface", 1, std::string(kPreface) + open(1)},

      {"a frame longer than allowed", 1, hello() + big_endian(0xffffff, 3) + std::string(6, '\0')},
      {"DATA on stream 0", 1, hello() + frame(kData, 0, 0, "x")},
      {"HEADERS on stream 0", 1, hello() + frame(kHeaders, kEndHeaders, 0, call_headers(path))},
      {"a stream of the server's number", 1, hello() + open(2)},
      {"streams in descending order", 2, hello() + open(9) + open(3)},
      {"a stream opened twice", 2, hello() + open(1) + open(1)},
      {"DATA on a stream that is not open", 1, hello() + frame(kData, 0, 7, "x")},
      {"padding longer than the frame", 1, hello() + frame(kData, kPadded, 1, "\xff")},
      {"CONTINUATION without HEADERS", 1, hello() + frame(kContinuation, kEndHeaders, 1, "x")},
      {"HEADERS broken off by PING", 2,
       hello() + frame(kHeaders, 0, 1, call_headers(path)) + frame(kPing, 0, 0, "12345678")},
      {"an unknown frame", 1, hello() + frame(0xbb, 0xff, 1, "what is this")},
      {"PUSH_PROMISE of a client", 1,
       hello() + frame(kPushPromise, kEndHeaders, 1, big_endian(2, 4))},
      {"SETTINGS of five bytes", 1, hello() + frame(kSettings, 0, 0, "12345")},
      {"SETTINGS that acknowledge and set", 1, hello() + frame(kSettings, kAck, 0, setting(4, 1))},
      {"a window of 2^32 - 1", 1, hello() + frame(kSettings, 0, 0, setting(4, 0xffffffff))},
      {"frames of 0 bytes asked for", 1, hello() + frame(kSettings, 0, 0, setting(5, 0))},
      {"a window increased by nothing", 1, hello() + frame(kWindowUpdate, 0, 0, big_endian(0, 4))},
      {"a window beyond 2^31", 2,
       hello() +
           repeated(2, [](int) { return frame(kWindowUpdate, 0, 0, big_endian(0x7fffffff, 4)); })},
      {"PING of three bytes", 1, hello() + frame(kPing, 0, 0, "123")},
      {"GOAWAY and on", 2, hello() + frame(kGoaway, 0, 0, big_endian(0, 8)) + open(1)},
      {"a stream that depends on itself", 1,
       hello() + frame(kPriority, 0, 1, big_endian(0x1ff, 5))},
      {"RST_STREAM of an idle stream", 1, hello() + frame(kRstStream, 0, 5, big_endian(8, 4))},

      {"HPACK that refers to nothing", 1, with_headers("\xff\xff\xff\xff\x7f")},
      {"HPACK with a length without end", 1, with_headers(std::string(1, '\0') + "\x7f\xff\xff")},
      {"an HPACK table of 2 GB", 1, with_headers("\x3f\xe1\xff\xff\xff\x07" + call_headers(path))},
      {"headers of 200 kB", 14,
       hello() + frame(kHeaders, 0, 1, call_headers(path)) +
           repeated(13,
                    [](int) {
                      return frame(kContinuation, 0, 1, field("x-large", std::string(16'000, 'x')));
                    })},
      {"2,000 CONTINUATIONs", 2'000,
       hello() + frame(kHeaders, 0, 1, call_headers(path)) +
           repeated(2'000, [](int) { return frame(kContinuation, 0, 1, field("x", "y")); })},
      {"GET", 1, with_headers(headers("GET", path, "application/grpc"))},
      {"another content-type", 1, with_headers(headers("POST", path, "text/html"))},
      {"no path", 1, with_headers(field(":method", "POST") + field(":scheme", "http"))},
      {"an unknown path", 1, with_headers(headers("POST", "/no/such", "application/grpc"))},
      {"a path of 10 kB", 1,
       with_headers(headers("POST", std::string(10'000, '/'), "application/grpc"))},
      {"a timeout that is none", 1,
       with_headers(call_headers(path) + field("grpc-timeout", "99999999999999999999H"))},
      {"an unknown encoding", 2,
       hello() +
           frame(kHeaders, kEndHeaders, 1, call_headers(path) + field("grpc-encoding", "zip")) +
           frame(kData, kEndStream, 1, grpc_message(request, /*compressed=*/true))},
      {"binary metadata that is no base64", 1,
       with_headers(call_headers(path) + field("x-bin", "!!!"))},
      {"metadata with control characters", 1,
       with_headers(call_headers(path) + field("x-request-id", "a\r\nb\x01"))},

      {"a message said to be compressed", 1, with_message(grpc_message(request, true))},
      {"a flag that is none", 1, with_message("\x7f" + grpc_message(request).substr(1))},
      {"a message of 4 GB that does not come", 1, with_message(big_endian(0xffffffff, 5))},
      {"half a message", 1, with_message(grpc_message(request).substr(0, 12))},
      {"a message of five bytes too few", 1, with_message(grpc_message(request).substr(0, 3))},
      {"no message", 1, with_message("")},
      {"two messages", 1, with_message(grpc_message(request) + grpc_message(request))},
      {"a message in pieces of a byte", 60,
       hello() + open(1) +
           repeated(30,
                    [&](int i) {
                      return frame(kData, 0, 1, grpc_message(request).substr(i, 1)) +
                             frame(kData, 0, 1, "");
                    })},
      {"trailers of a client", 2,
       hello() + open(1) + frame(kHeaders, kEndHeaders | kEndStream, 1, field("x", "y"))},

      {"3,000 PINGs", 3'000,
       hello() + repeated(3'000, [](int) { return frame(kPing, 0, 0, "12345678"); })},
      {"3,000 SETTINGS", 3'000,
       hello() +
           repeated(3'000,
                    [](int i) { return frame(kSettings, 0, 0, setting(4, 65'535 + i % 2)); })},
      {"3,000 empty DATA frames", 3'000,
       hello() + open(1) + repeated(3'000, [](int) { return frame(kData, 0, 1, ""); })},
      {"3,000 PRIORITYs", 3'000,
       hello() + repeated(3'000,
                          [](int i) {
                            return frame(kPriority, 0, 2 * i + 1, std::string("\0\0\0\0\1", 5));
                          })},
      {"500 endless streams, each reset at once", 1'500,
       hello() + repeated(500,
                          [&](int i) {
                            const auto stream = static_cast<std::uint32_t>(2 * i + 1);
                            return call(stream, path, endless) +
                                   frame(kRstStream, 0, stream, big_endian(8, 4));
                          })},
      {"2,000 streams, more than are allowed", 4'000,
       hello() + repeated(2'000,
                          [&](int i) {
                            return call(static_cast<std::uint32_t>(2 * i + 1), "/no/such", "");
                          })},
  };
}

}  // namespace

TEST_CASE("malformed HTTP/2 and gRPC framing affects no other client", "[threat-48]") {
  const std::uint64_t seed = std::random_device()();
  std::cout << "chaos: damaged frames with seed " << seed << std::endl;
  CAPTURE(seed);
  RandomMessages random(seed, {});
  ChaosServer server;
  const std::vector<Attack> all = attacks();
  int connections = 0, frames = 0;

  // Writes without waiting for an answer, looks at what there is, and goes in one of three ways.
  const auto send = [&](const std::string& bytes, int count) {
    Socket socket = Socket::connect(server.port());
    // The server may close at any time, and may not read while its answers are not taken.
    std::thread reader([&] {
      while (!socket.read_some(std::chrono::milliseconds(50)).empty()) {
      }
    });
    socket.try_write(bytes);
    reader.join();
    if (random.once_in(2)) socket.reset();
    ++connections;
    frames += count;
  };
  const auto round = [&](int damaged) {
    for (const Attack& attack : all) {
      INFO(attack.what);
      send(attack.bytes, attack.messages);
    }
    for (int i = 0; i < damaged; ++i) {
      const Attack& attack = random.one_of(all);
      if (attack.bytes.size() > 20'000) continue;
      send(hello() +
               random.damage(attack.bytes.substr(std::min(attack.bytes.size(), hello().size()))),
           1 + attack.messages);
    }
  };
  round(50);
  // A leak grows with every barrage; the allocator reuses its memory of one for the next.
  int served = 0;
  for (int barrage = 0; barrage < 3; ++barrage) {
    server.take_baseline();
    Neighbour neighbour(server);
    for (int i = 0; i < 3; ++i) round(50);
    neighbour.stop();
    CHECK(neighbour.disturbed() == 0);
    served += neighbour.served();
    if (server.gives_memory_back()) break;
  }
  CHECK(server.metric("lintel_requests_total", "code=\"INTERNAL\"") == 0);
  CHECK(server.metric("lintel_requests_total", "code=\"UNKNOWN\"") == 0);
  server.check_recovered(std::to_string(frames) + " malformed frames on " +
                         std::to_string(connections) + " connections beside " +
                         std::to_string(served) + " undisturbed generations");
  CHECK(server.stop() == 0);
}

}  // namespace lintel::testing
