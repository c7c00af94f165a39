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

// RedisNode and RedisLane: a client's record of a server, and one connection to it with the
// requests that wait for answers. Used by one thread.

struct RedisNode;

// A request in progress.
struct RedisErrand {
  RedisRequest request;
  TimePoint deadline;
  TimePoint not_before{};       // for one that is sent again
  RedisNode* pinned = nullptr;  // sent to this server regardless of its slot
  bool asks = false;            // sent after ASKING
  bool by_text = false;         // the server lacks its script
  RedisAnswer answer{};

  // Answers the caller in any case: with an empty answer if an exception destroyed the errand.
  ~RedisErrand() { tell(); }
  void tell() noexcept {
    if (!request.done) return;
    const auto done = std::exchange(request.done, nullptr);
    survives(ServerThread::kRedis, [&] { done(std::move(answer)); });
  }
};
using RedisErrandPtr = std::shared_ptr<RedisErrand>;

struct RedisLane {
  // Expected replies, in their order.
  struct Expected {
    enum class What { kLogin, kLoad, kAsking, kErrand, kWait } what = What::kErrand;
    RedisErrandPtr errand{};
    TimePoint sent{};
  };

  RedisLink link;
  bool is_ready = false;       // logged in
  bool is_looking_up = false;  // resolves its server's name, since `began`
  TimePoint began{};           // to connect
  TimePoint retry_at{};        // when down
  Duration backoff{};
  std::optional<TimePoint> down_since;
  std::string why;  // the reason why it is down
  std::deque<RedisErrandPtr> waiting;
  std::deque<Expected> expected;
  std::vector<RedisErrandPtr> done;  // answered, except for their WAIT
};

// The facts in a server's INFO.
struct RedisFacts {
  bool is_cluster = false;
  bool is_master = false;
  int replicas = 0;
  std::string version;
  std::string eviction;
};
RedisFacts parse_redis_info(const std::string& info);
inline constexpr RedisReplyBounds kMostRedisInfo{std::size_t{1} << 20, 0};
// The reason why a server cannot keep sessions; empty: it can.
std::string unusable(const RedisFacts& facts);

struct RedisNode {
  RedisAddress address;
  RedisLane lanes[2];  // reads, writes
  bool is_master = false;
  int replicas = 0;       // by the cluster's count
  int linked = 0;         // by its own count
  bool is_known = false;  // its INFO was read
};

// The slots of each master, and the number of its replicas.
struct RedisSlots {
  struct Range {
    int first = 0, last = 0;
    RedisAddress master;
    int replicas = 0;
  };
  std::vector<Range> ranges;

  static constexpr RedisReplyBounds kMost{std::size_t{4} << 20, std::size_t{1} << 18};
};
// Parses the reply to CLUSTER SLOTS. asked: the server that answered, which may not know its own
// address.
std::optional<RedisSlots> parse_redis_slots(const RedisReply& reply, const RedisAddress& asked);

class RedisLoop;

// Thrown if no server can be used; what() gives the reason.
class RedisError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One thread communicates with all servers, over two connections each: one for writes, of which
// many are sent in one pipeline with one WAIT at its end, and one for reads, which therefore never
// wait for a replica. Follows MOVED and ASK, finds new masters, reconnects with back-off. Requests
// without an answer are sent again: a repeat of a request changes nothing.
//
// Thread-safe.
class RedisClient {
 public:
  // Waits until the servers are known. Throws RedisError if none can be reached, or one refuses the
  // user, is too old or would evict stored data; std::runtime_error for files of TLS.
  explicit RedisClient(const RedisOptions& options);
  ~RedisClient();  // calls stop()

  // Ends all requests without an answer; later ones are not answered either.
  void stop() EXCLUDES(mutex_);

  void ask(RedisRequest request) EXCLUDES(mutex_);
  // Waits. Must not be called by `done` of a request.
  RedisAnswer ask_and_wait(RedisRequest request);

  RedisState state() const EXCLUDES(mutex_);

 private:
  // Runs one iteration of the thread. False: it has to end.
  bool run_once() noexcept EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::vector<RedisRequest> asked_ GUARDED_BY(mutex_);
  RedisState state_ GUARDED_BY(mutex_);
  bool is_closing_ GUARDED_BY(mutex_) = false;
  int bell_ = -1;  // an eventfd
  std::unique_ptr<RedisLoop> loop_;
  std::thread thread_;  // last: uses the members above
};

}  // namespace lintel
