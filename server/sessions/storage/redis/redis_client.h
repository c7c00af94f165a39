// SPDX-License-Identifier: Apache-2.0
// RedisClient: a Redis server, or the masters of a Redis Cluster.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/threads.h"
#include "server/sessions/storage/redis/redis_link.h"
#include "server/sessions/storage/redis/redis_protocol.h"
#include "server/sessions/storage/redis/redis_servers.h"

namespace lintel {

// RedisNode and RedisLane: a server as a client knows it, and one connection to it with what waits
// for its answers. Of one thread.

struct RedisNode;

// A request on its way.
struct RedisErrand {
  RedisRequest request;
  TimePoint deadline;
  TimePoint not_before{};       // of one that is to be sent again
  RedisNode* pinned = nullptr;  // sent to this server regardless of its slot
  bool asks = false;            // goes with ASKING
  bool by_text = false;         // its script is not known there
  RedisAnswer answer{};

  // The caller always receives an answer: an empty one, where an exception destroyed the errand.
  ~RedisErrand() { tell(); }
  void tell() noexcept {
    if (!request.done) return;
    const auto done = std::exchange(request.done, nullptr);
    survives(ServerThread::kRedis, [&] { done(std::move(answer)); });
  }
};
using RedisErrandPtr = std::shared_ptr<RedisErrand>;

struct RedisLane {
  // Replies that are to come, in their order.
  struct Expected {
    enum class What { kLogin, kLoad, kAsking, kErrand, kWait } what = What::kErrand;
    RedisErrandPtr errand{};
    TimePoint sent{};
  };

  RedisLink link;
  bool is_ready = false;       // logged in
  bool is_looking_up = false;  // the address of its server's name, since `began`
  TimePoint began{};           // to connect
  TimePoint retry_at{};        // when down
  Duration backoff{};
  std::optional<TimePoint> down_since;
  std::string why;  // it is down
  std::deque<RedisErrandPtr> waiting;
  std::deque<Expected> expected;
  std::vector<RedisErrandPtr> done;  // answered, but for their WAIT
};

// What INFO says of a server.
struct RedisFacts {
  bool is_cluster = false;
  bool is_master = false;
  int replicas = 0;
  std::string version;
  std::string eviction;
};
RedisFacts parse_redis_info(const std::string& info);
inline constexpr RedisReplyBounds kMostRedisInfo{std::size_t{1} << 20, 0};
// Why a server cannot keep sessions; empty: it can.
std::string unusable(const RedisFacts& facts);

struct RedisNode {
  RedisAddress address;
  RedisLane lanes[2];  // reads, writes
  bool is_master = false;
  int replicas = 0;       // that the cluster says it has
  int linked = 0;         // that itself said it has
  bool is_known = false;  // its INFO was read
};

// Which master has which slots, and how many replicas.
struct RedisSlots {
  struct Range {
    int first = 0, last = 0;
    RedisAddress master;
    int replicas = 0;
  };
  std::vector<Range> ranges;

  static constexpr RedisReplyBounds kMost{std::size_t{4} << 20, std::size_t{1} << 18};
};
// Of CLUSTER SLOTS. asked: the server that answered, which may not know its own address.
std::optional<RedisSlots> parse_redis_slots(const RedisReply& reply, const RedisAddress& asked);

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
