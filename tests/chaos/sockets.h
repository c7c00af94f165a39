// SPDX-License-Identifier: Apache-2.0
// Plain sockets, and HTTP/2 written on them byte by byte: for what no well-behaved client does.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace lintel::testing {

// A connection to a port of 127.0.0.1. Throws std::runtime_error where the other side is gone.
class Socket {
 public:
  // receive_buffer_bytes: what the system takes in for it; 0: as it likes.
  static Socket connect(int port, int receive_buffer_bytes = 0);
  static Socket listen();  // on a port of 127.0.0.1 that the system picks
  Socket accept() const;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();  // closes it
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;

  int fd() const { return fd_; }
  int port() const;  // its own
  int release();
  void write(std::string_view bytes) const;
  // The same, but false where the other side is gone.
  bool try_write(std::string_view bytes) const;
  // Some bytes; empty at the end, when the connection is broken, or after `at_most` without any.
  std::string read_some(std::chrono::milliseconds at_most = std::chrono::seconds(60)) const;
  std::string read_to_end() const;
  // Closes it with RST, what was not sent or read is lost.
  void reset();

 private:
  int fd_ = -1;
};

// HTTP/2 frames, as RFC 9113 has them.
namespace http2 {

enum FrameType : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr std::uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4, kPadded = 8;
inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string big_endian(std::uint64_t value, int bytes);
std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                  std::string_view payload);
// A setting's entry in a SETTINGS frame.
std::string setting(std::uint16_t id, std::uint32_t value);
// A header field, literal, not indexed.
std::string field(std::string_view name, std::string_view value);
// The headers of a gRPC call, e.g. of "/lintel.v1.GenerationService/Generate".
std::string call_headers(std::string_view path);
// A message with gRPC's five bytes before it.
std::string grpc_message(std::string_view bytes, bool compressed = false);

// Preface and settings with this window for every stream and for the connection.
std::string hello(std::uint32_t window = 65535);
// A whole call with one message, on `stream`.
std::string call(std::uint32_t stream, std::string_view path, std::string_view message);

// Reads frames until one of `type` has come; false when the connection ended before. Answers
// nothing.
bool read_until(const Socket& socket, FrameType type);

}  // namespace http2

}  // namespace lintel::testing
