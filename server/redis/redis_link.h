// RedisLink: one connection to a Redis server, plain or TLS, that never blocks.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/redis/redis_reply.h"
#include "server/redis/redis_url.h"

namespace lintel {

// What TLS to Redis needs.
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

  // Begins to connect. False: `why()` says why not. A name is looked up, which waits for it.
  // tls: null: plain; outlives the connection.
  bool connect(const RedisAddress& address, const RedisTls* tls);
  void close();
  bool is_open() const { return fd_ >= 0; }
  // Its TCP connection stands, and TLS where that is spoken.
  bool is_up() const { return is_open() && state_ == State::kUp; }

  void send(std::string_view bytes) { out_ += bytes; }
  int fd() const { return fd_; }
  short events() const;
  // Reads and writes what it can. False: the connection is gone; why() says why.
  bool move();
  // Writes what it can, where it is up. False: as move().
  bool flush() { return !is_up() || write_out(); }
  // The next reply that has come whole, also after the connection is gone.
  std::optional<RedisReply> next();
  const std::string& why() const { return why_; }

 private:
  enum class State { kConnecting, kHandshake, kUp };

  bool fail(const std::string& why);
  bool shake_hands();
  bool write_out();
  bool read_in();

  int fd_ = -1;
  State state_ = State::kConnecting;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, &SSL_free};
  bool wants_write_ = false;  // of TLS
  std::string out_;
  std::size_t sent_ = 0;  // of out_
  std::unique_ptr<RedisReplies> replies_;
  std::string why_;
};

}  // namespace lintel
