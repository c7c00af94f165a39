// SPDX-License-Identifier: Apache-2.0
// RedisLink: one connection to a Redis server, plain or TLS, that never blocks.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/sessions/storage/redis/redis_protocol.h"
#include "server/sessions/storage/redis/redis_servers.h"

namespace lintel {

// The TLS configuration for connections to Redis.
struct RedisTls {
  // Throws std::runtime_error, naming the file. ca: empty: the system's. certificate and key: both
  // or neither.
  RedisTls(const std::string& ca, const std::string& certificate, const std::string& key);

  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context;
};

// Used by one thread, which polls fd() for events() and then calls move().
class RedisLink {
 public:
  RedisLink() = default;
  ~RedisLink() { close(); }
  RedisLink(const RedisLink&) = delete;
  RedisLink& operator=(const RedisLink&) = delete;

  // Begins to connect to the first of the addresses of `host` that does not refuse at once. False:
  // none is left; why() has the reason. tls: null: plain; outlives the connection.
  bool connect(const std::string& host, const std::vector<SocketAddress>& addresses,
               const RedisTls* tls);
  void close();
  bool is_open() const { return fd_ >= 0; }
  // True if TCP, and TLS if it is used, are connected.
  bool is_up() const { return is_open() && state_ == State::kUp; }

  void send(std::string_view bytes) { out_ += bytes; }
  int fd() const { return fd_; }
  short events() const;
  // Writes as much as possible, and reads as much as is parsed at once. False: the connection is
  // gone; why() has the reason.
  bool move();
  // True if move() has to be called again without polling.
  bool has_more() const { return is_open() && has_more_; }
  // Writes as much as possible, if it is up. False: as move().
  bool flush() { return !is_up() || write_out(); }
  // The next complete reply, also after the connection is gone. A reply that is beyond its bounds
  // closes the connection.
  std::optional<RedisReply> next(const RedisReplyBounds& bounds);
  // True if a reply was malformed or beyond its bounds.
  bool has_bad_reply() const { return replies_ != nullptr && !replies_->error().empty(); }
  // True if there are bytes of an incomplete reply.
  bool has_bytes() const { return replies_ != nullptr && replies_->has_bytes(); }
  // Closes it. Returns false.
  bool fail(const std::string& why);
  const std::string& why() const { return why_; }

 private:
  enum class State { kConnecting, kHandshake, kUp };

  bool shake_hands();
  bool write_out();
  bool read_in();

  int fd_ = -1;
  State state_ = State::kConnecting;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, &SSL_free};
  bool wants_write_ = false;  // needed by TLS
  bool has_more_ = false;
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::unique_ptr<RedisReplies> replies_;
  std::string why_;
};

}  // namespace lintel
