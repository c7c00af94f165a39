// RedisClient: a Redis server, or the masters of a Redis Cluster.
#pragma once

#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "server/core/mutex.h"
#include "server/sessions/storage/redis/redis_options.h"
#include "server/sessions/storage/redis/redis_request.h"

namespace lintel {

class RedisLoop;

// No server can be used; what() says why.
class RedisError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One thread speaks to all servers, over two connections each: one for writes, of which many go in
// one pipeline with one WAIT at its end, and one for what is only read, which so never waits for a
// replica. Follows MOVED and ASK, finds new masters, connects again with back-off. What was sent
// and not answered is sent again: requests are such that a repeat changes nothing.
//
// Thread-safe.
class RedisClient {
 public:
  // Waits until the servers are known. Throws RedisError: none can be reached, it refuses the user,
  // it is too old, it would evict what is stored; std::runtime_error for files of TLS.
  explicit RedisClient(const RedisOptions& options);
  ~RedisClient();  // as stop()

  // Ends what has not been answered; what is asked from now on is not, either.
  void stop() EXCLUDES(mutex_);

  void ask(RedisRequest request) EXCLUDES(mutex_);
  // Waits. Not from `done` of a request.
  RedisAnswer ask_and_wait(RedisRequest request);

  RedisState state() const EXCLUDES(mutex_);

 private:
  // A turn of the thread. False: it is to end.
  bool run_once() noexcept EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::vector<RedisRequest> asked_ GUARDED_BY(mutex_);
  RedisState state_ GUARDED_BY(mutex_);
  bool is_closing_ GUARDED_BY(mutex_) = false;
  int bell_ = -1;  // an eventfd
  std::unique_ptr<RedisLoop> loop_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace lintel
