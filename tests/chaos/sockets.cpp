// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/sockets.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace lintel::testing {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

Socket Socket::connect(int port, int receive_buffer_bytes) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (receive_buffer_bytes > 0) {
    ::setsockopt(socket.fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof(receive_buffer_bytes));
  }
  const sockaddr_in address = loopback(port);
  if (::connect(socket.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error(std::string("cannot connect: ") + std::strerror(errno));
  }
  return socket;
}

Socket Socket::listen() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(0);
  if (::bind(socket.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket.fd_, 128) != 0) {
    throw std::runtime_error("cannot listen");
  }
  return socket;
}

Socket Socket::accept() const { return Socket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)); }

int Socket::port() const {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int Socket::release() { return std::exchange(fd_, -1); }

bool Socket::try_write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void Socket::write(std::string_view bytes) const {
  if (!try_write(bytes)) throw std::runtime_error("cannot write");
}

std::string Socket::read_some(std::chrono::milliseconds at_most) const {
  pollfd file{fd_, POLLIN, 0};
  if (::poll(&file, 1, static_cast<int>(at_most.count())) != 1) return "";
  std::array<char, 65536> bytes;
  const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
  return std::string(bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
}

std::string Socket::read_to_end() const {
  std::string all;
  for (std::string some = read_some(); !some.empty(); some = read_some()) all += some;
  return all;
}

void Socket::reset() {
  const linger at_once{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  ::close(release());
}

namespace http2 {

std::string big_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                  std::string_view payload) {
  return big_endian(payload.size(), 3) + big_endian(type, 1) + big_endian(flags, 1) +
         big_endian(stream, 4) + std::string(payload);
}

std::string setting(std::uint16_t id, std::uint32_t value) {
  return big_endian(id, 2) + big_endian(value, 4);
}

std::string field(std::string_view name, std::string_view value) {
  // HPACK's whole numbers of a prefix of seven bits; no Huffman code.
  const auto text = [](std::string_view t) {
    std::string out;
    if (t.size() < 127) return big_endian(t.size(), 1) + std::string(t);
    out.push_back(127);
    std::size_t rest = t.size() - 127;
    for (; rest >= 128; rest /= 128) out.push_back(static_cast<char>(128 + rest % 128));
    out.push_back(static_cast<char>(rest));
    return out + std::string(t);
  };
  return std::string(1, '\0') + text(name) + text(value);
}

std::string call_headers(std::string_view path) {
  return field(":method", "POST") + field(":scheme", "http") + field(":path", path) +
         field(":authority", "localhost") + field("content-type", "application/grpc") +
         field("te", "trailers");
}

std::string grpc_message(std::string_view bytes, bool compressed) {
  return big_endian(compressed ? 1 : 0, 1) + big_endian(bytes.size(), 4) + std::string(bytes);
}

std::string hello(std::uint32_t window) {
  constexpr std::uint16_t kInitialWindowSize = 4;
  std::string bytes(kPreface);
  bytes += frame(kSettings, 0, 0, setting(kInitialWindowSize, window));
  if (window > 65535) bytes += frame(kWindowUpdate, 0, 0, big_endian(window - 65535, 4));
  return bytes;
}

std::string call(std::uint32_t stream, std::string_view path, std::string_view message) {
  return frame(kHeaders, kEndHeaders, stream, call_headers(path)) +
         frame(kData, kEndStream, stream, grpc_message(message));
}

bool read_until(const Socket& socket, FrameType type) {
  std::string bytes;
  while (true) {
    const std::string some = socket.read_some();
    if (some.empty()) return false;
    bytes += some;
    while (bytes.size() >= 9) {
      std::size_t length = 0;
      for (int i = 0; i < 3; ++i) length = length * 256 + static_cast<unsigned char>(bytes[i]);
      if (bytes[3] == static_cast<char>(type)) return true;
      if (bytes.size() < 9 + length) break;
      bytes.erase(0, 9 + length);
    }
  }
}

}  // namespace http2

}  // namespace lintel::testing
