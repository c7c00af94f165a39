// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "model/core/ca_certificates.h"

namespace lintel {
namespace {

std::string tls_error() {
  std::array<char, 256> text{};
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "the connection was closed";
  ERR_error_string_n(error, text.data(), text.size());
  return text.data();
}

bool is_ip(const std::string& host) {
  std::array<unsigned char, 16> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace

RedisTls::RedisTls(const std::string& ca, const std::string& certificate, const std::string& key)
    : context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free) {
  if (context == nullptr) throw std::runtime_error("TLS to Redis: " + tls_error());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const std::string file = ca.empty() ? ca_file() : ca;
  const bool has_ca =
      file.empty() ? SSL_CTX_set_default_verify_paths(context.get()) == 1
                   : SSL_CTX_load_verify_locations(context.get(), file.c_str(), nullptr) == 1;
  if (!has_ca)
    throw std::runtime_error(file + ": holds no certificates of authorities: " + tls_error());
  if (certificate.empty()) return;
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1) {
    throw std::runtime_error(certificate + ": holds no certificate: " + tls_error());
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    throw std::runtime_error(key + ": holds no key of " + certificate + ": " + tls_error());
  }
}

bool RedisLink::connect(const std::string& host, const std::vector<SocketAddress>& addresses,
                        const RedisTls* tls) {
  close();
  for (const SocketAddress& each : addresses) {
    fd_ = ::socket(each.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return fail(std::strerror(errno));
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&each.address), each.size) == 0 ||
        errno == EINPROGRESS) {
      break;
    }
    fail(std::strerror(errno));
  }
  if (fd_ < 0) return false;
  state_ = State::kConnecting;
  replies_ = std::make_unique<RedisReplies>();
  if (tls == nullptr) return true;
  ssl_.reset(SSL_new(tls->context.get()));
  if (ssl_ == nullptr) return fail(tls_error());
  SSL_set_fd(ssl_.get(), fd_);
  const char* const name = host.c_str();
  const bool is_named =
      is_ip(host)
          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), name) == 1
          : SSL_set1_host(ssl_.get(), name) == 1 && SSL_set_tlsext_host_name(ssl_.get(), name) == 1;
  return is_named || fail(tls_error());
}

void RedisLink::close() {
  ssl_.reset();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  out_.clear();
  sent_ = 0;
  wants_write_ = has_more_ = false;
}

bool RedisLink::fail(const std::string& why) {
  why_ = why;
  close();
  return false;
}

short RedisLink::events() const {
  const bool writes =
      state_ == State::kConnecting || wants_write_ || (state_ == State::kUp && sent_ < out_.size());
  return static_cast<short>(POLLIN | (writes ? POLLOUT : 0));
}

bool RedisLink::shake_hands() {
  const int done = SSL_connect(ssl_.get());
  if (done == 1) {
    state_ = State::kUp;
    wants_write_ = false;
    return true;
  }
  const int error = SSL_get_error(ssl_.get(), done);
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (error == SSL_ERROR_WANT_READ || wants_write_) return true;
  const long verified = SSL_get_verify_result(ssl_.get());
  if (verified != X509_V_OK) {
    ERR_clear_error();
    return fail(std::string("its certificate is refused: ") +
                X509_verify_cert_error_string(verified));
  }
  return fail("TLS: " + tls_error());
}

bool RedisLink::move() {
  if (!is_open()) return false;
  if (state_ == State::kConnecting) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) == 0) return true;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return fail(std::strerror(error));
    state_ = ssl_ != nullptr ? State::kHandshake : State::kUp;
  }
  if (state_ == State::kHandshake && !shake_hands()) return false;
  if (state_ != State::kUp) return true;
  return write_out() && read_in();
}

bool RedisLink::write_out() {
  while (sent_ < out_.size()) {
    const char* const from = out_.data() + sent_;
    const std::size_t left = out_.size() - sent_;
    if (ssl_ != nullptr) {
      std::size_t count = 0;
      const int done = SSL_write_ex(ssl_.get(), from, left, &count);
      if (done != 1) {
        const int error = SSL_get_error(ssl_.get(), done);
        wants_write_ = error == SSL_ERROR_WANT_WRITE;
        if (error == SSL_ERROR_WANT_READ || wants_write_) return true;
        return fail("TLS: " + tls_error());
      }
      sent_ += count;
    } else {
      const ssize_t count = ::send(fd_, from, left, MSG_NOSIGNAL);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (count < 0) return fail(std::strerror(errno));
      sent_ += static_cast<std::size_t>(count);
    }
  }
  wants_write_ = false;
  out_.clear();
  sent_ = 0;
  return true;
}

bool RedisLink::read_in() {
  std::array<char, 64 << 10> buffer;
  // Received bytes are parsed before more are read: a server that never stops would fill the
  // memory.
  constexpr int kMostAtOnce = 4;
  has_more_ = false;
  for (int reads = 0; reads < kMostAtOnce; ++reads) {
    std::size_t count = 0;
    if (ssl_ != nullptr) {
      const int done = SSL_read_ex(ssl_.get(), buffer.data(), buffer.size(), &count);
      if (done != 1) {
        const int error = SSL_get_error(ssl_.get(), done);
        wants_write_ = wants_write_ || error == SSL_ERROR_WANT_WRITE;
        if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return true;
        return fail("TLS: " + tls_error());
      }
    } else {
      const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (got < 0) return fail(std::strerror(errno));
      if (got == 0) return fail("the connection was closed");
      count = static_cast<std::size_t>(got);
    }
    if (!replies_->feed({buffer.data(), count})) return fail("it is no Redis server");
  }
  has_more_ = true;
  return true;
}

std::optional<RedisReply> RedisLink::next(const RedisReplyBounds& bounds) {
  if (replies_ == nullptr) return std::nullopt;
  std::optional<RedisReply> reply = replies_->next(bounds);
  if (is_open() && !replies_->error().empty()) fail(replies_->error());
  return reply;
}

}  // namespace lintel
