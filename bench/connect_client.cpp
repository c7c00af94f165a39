#include "bench/connect_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace lintel::bench {
namespace {

std::uint32_t length_of(std::string_view head) {
  std::uint32_t length = 0;
  for (std::size_t i = 1; i < 5; ++i) length = length << 8 | static_cast<unsigned char>(head[i]);
  return length;
}

}  // namespace

ConnectClient::ConnectClient(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &name.sin_addr);
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    ::close(fd_);
    throw std::runtime_error("cannot connect to http://" + address);
  }
}

ConnectClient::~ConnectClient() { ::close(fd_); }

void ConnectClient::stop() {
  stopped_ = true;
  ::shutdown(fd_, SHUT_RDWR);
}

void ConnectClient::need(std::size_t bytes) {
  while (buffer_.size() < bytes) {
    char piece[65536];
    const ssize_t size = ::recv(fd_, piece, sizeof(piece), 0);
    if (size <= 0) throw std::runtime_error("the HTTP server has closed the connection");
    buffer_.append(piece, static_cast<std::size_t>(size));
  }
}

std::string ConnectClient::take(std::size_t bytes) {
  need(bytes);
  const std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  return taken;
}

std::string ConnectClient::take_line() {
  std::size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) need(buffer_.size() + 1);
  const std::string line = take(end + 2);
  return line.substr(0, end);
}

bool ConnectClient::generate(const v1::GenerateRequest& request,
                             const std::function<void(const v1::GenerateResponse&)>& on_message) {
  const std::string message = request.SerializeAsString();
  std::string text =
      "POST /lintel.v1.GenerationService/Generate HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Type: application/connect+proto\r\nContent-Length: " +
      std::to_string(message.size() + 5) + "\r\n\r\n";
  text += '\0';
  for (int shift = 24; shift >= 0; shift -= 8) {
    text += static_cast<char>(message.size() >> shift & 0xff);
  }
  text += message;
  try {
    if (::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
      throw std::runtime_error("the HTTP server takes no request");
    }
    if (const std::string status = take_line(); status.find(" 200 ") == std::string::npos) {
      throw std::runtime_error("the HTTP server says " + status);
    }
    while (!take_line().empty()) {
    }
    std::string body;  // what came of it and was not looked at
    while (true) {
      const std::size_t size = std::stoul(take_line(), nullptr, 16);
      body += take(size);
      take(2);
      std::size_t at = 0;
      while (body.size() - at >= 5 && body.size() - at - 5 >= length_of({&body[at], 5})) {
        const std::uint32_t length = length_of({&body[at], 5});
        if (body[at] != 0) {
          if (length > 2) throw std::runtime_error(body.substr(at + 5, length));
        } else {
          v1::GenerateResponse response;
          response.ParseFromArray(&body[at + 5], static_cast<int>(length));
          on_message(response);
        }
        at += 5 + length;
      }
      body.erase(0, at);
      if (size == 0) return true;
    }
  } catch (const std::runtime_error&) {
    if (stopped_) return false;
    throw;
  }
}

}  // namespace lintel::bench
