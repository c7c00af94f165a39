// SPDX-License-Identifier: Apache-2.0
#include "tests/server/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace lintel::testing {

std::string HttpReply::header(const std::string& name) const {
  const std::string start = "\r\n" + name + ": ";
  const std::size_t at = head.find(start);
  if (at == std::string::npos) return {};
  const std::size_t value = at + start.size();
  return head.substr(value, head.find("\r\n", value) - value);
}

int connect_to(int port, int receive_buffer_bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

Wire plain_wire(int port, int receive_buffer_bytes) {
  const int fd = connect_to(port, receive_buffer_bytes);
  return {[fd](std::string_view bytes) {
            while (!bytes.empty()) {
              const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
              if (sent < 0) return;  // the server has closed, and what it said can still be read
              bytes.remove_prefix(static_cast<std::size_t>(sent));
            }
          },
          [fd] {
            pollfd waited{fd, POLLIN, 0};
            if (::poll(&waited, 1, /*ms=*/60'000) != 1) return std::string();
            std::string bytes(16384, '\0');
            const ssize_t size = ::recv(fd, bytes.data(), bytes.size(), 0);
            bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
            return bytes;
          },
          [fd] { ::close(fd); }};
}

bool HttpClient::fill() {
  const std::string more = wire_.read_some();
  buffer_ += more;
  return !more.empty();
}

HttpReply HttpClient::read() {
  HttpReply reply;
  std::size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill()) return reply;
  }
  reply.head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply.status = std::stoi(reply.head.substr(9, 3));
  if (const std::string length = reply.header("content-length"); !length.empty()) {
    while (buffer_.size() < std::stoul(length) && fill()) {
    }
    reply.whole = buffer_.size() >= std::stoul(length);
    reply.body = buffer_.substr(0, std::stoul(length));
    buffer_.erase(0, reply.body.size());
    return reply;
  }
  if (reply.header("transfer-encoding") != "chunked") {
    reply.whole = true;
    if (reply.status < 200 || reply.status == 204) return reply;
    while (fill()) {
    }
    reply.body = std::move(buffer_);
    return reply;
  }
  while (true) {
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!fill()) return reply;
    }
    const std::size_t size = std::stoul(buffer_.substr(0, end), nullptr, 16);
    while (buffer_.size() < end + 2 + size + 2) {
      if (!fill()) return reply;
    }
    reply.body += buffer_.substr(end + 2, size);
    buffer_.erase(0, end + 2 + size + 2);
    if (size == 0) break;
  }
  reply.whole = true;
  return reply;
}

std::string HttpClient::read_raw(std::size_t bytes) {
  while (buffer_.size() < bytes && fill()) {
  }
  const std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, taken.size());
  return taken;
}

bool HttpClient::ended() { return buffer_.empty() && wire_.read_some().empty(); }

void HttpClient::close() {
  if (!closed_) wire_.close();
  closed_ = true;
}

std::string post_text(const std::string& path, std::string_view body, const std::string& type,
                      const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" +
         (type.empty() ? "" : "Content-Type: " + type + "\r\n") +
         "Content-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" +
         std::string(body);
}

HttpReply request(int port, const std::string& text) {
  HttpClient client(port);
  client.send(text);
  return client.read();
}

HttpReply post(int port, const std::string& path, std::string_view body, const std::string& type,
               const std::string& headers) {
  return request(port, post_text(path, body, type, headers));
}

}  // namespace lintel::testing
