// RedisLoop: what a RedisClient's thread does.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/sessions/storage/redis/redis_nodes.h"
#include "server/sessions/storage/redis/redis_options.h"

namespace lintel {

// Of one thread, but for the constructor.
class RedisLoop {
 public:
  // bell: an eventfd, rung when requests are queued. opened: called once, by turn(): empty when the
  // servers are known, else why none can be used. Throws std::runtime_error for files of TLS.
  RedisLoop(const RedisOptions& options, int bell, std::function<void(std::string)> opened);
  ~RedisLoop();

  // Where it throws the request is left as it was, or answered.
  void take(RedisRequest&& request);
  // Waits for what comes next, at most a moment, and does it.
  void turn();
  // What was lost on its way, or is to be asked elsewhere, and is due.
  void send_again();
  // Answers all that wait, with nothing.
  void end();
  // After an exception, which leaves the progress of the work unknown: end(), then a restart.
  void begin_anew() noexcept;
  RedisState state() const;

 private:
  enum Lane { kReads = 0, kWrites = 1 };
  static constexpr int kSlots = 16384;

  // Null: there are too many by now.
  RedisNode* node_of(const RedisAddress& address);
  RedisLane& lane_of(RedisNode& node, const RedisErrand& errand) {
    return node.lanes[errand.request.is_write ? kWrites : kReads];
  }
  void route(RedisErrandPtr errand);
  void send_waiting(RedisNode& node, RedisLane& lane);
  void send(RedisLane& lane, const RedisErrandPtr& errand);
  // Or waits for the address of its name.
  void connect(RedisNode& node, RedisLane& lane);
  RedisReplyBounds bounds_of(const RedisLane::Expected& expected) const;
  void log_in(RedisLane& lane);
  void came_up(RedisLane& lane);
  void look_after(RedisNode& node, RedisLane& lane);
  void take_replies(RedisNode& node, RedisLane& lane);
  void take_reply(const RedisAddress& asked, RedisLane& lane, const RedisErrandPtr& errand,
                  RedisReply reply, bool waits);
  void lose(RedisNode& node, RedisLane& lane, const std::string& why);
  void again(RedisErrandPtr errand, Duration pause);
  void finish(RedisErrand& errand, bool arrived);
  void expire(RedisLane& lane);
  int replicas_of(const RedisNode& node) const;

  void refresh();
  // How long what is known of the servers is good for.
  Duration look_again() const;
  void ask_for_facts(RedisNode& node, bool then_slots);
  void took_facts(RedisNode& node, const RedisAnswer& answer, bool then_slots);
  void took_slots(RedisNode& node, const RedisAnswer& answer);
  void search_on(const std::string& why);
  void use(const RedisSlots& slots);
  void opened_unless_unknown();
  void tell_opened(const std::string& why);
  void pin(RedisNode& node, std::vector<std::string> command, const RedisReplyBounds& most,
           std::function<void(RedisAnswer)> done);

  const RedisOptions options_;
  const int bell_;
  NameLookups lookups_;
  std::function<void(std::string)> opened_;  // null once called
  std::unique_ptr<RedisTls> tls_;
  std::vector<std::unique_ptr<RedisNode>> nodes_;
  bool is_cluster_ = false;
  bool is_known_ = false;
  bool had_replicas_ = false;  // a master of the cluster
  std::array<RedisNode*, kSlots> owners_{};
  std::vector<RedisErrandPtr> later_;  // to be routed again
  TimePoint now_ = std::chrono::steady_clock::now();

  bool is_stale_ = true;  // who has which slots
  bool is_searching_ = false;
  TimePoint next_refresh_{};
  TimePoint searched_since_ = now_;
  std::size_t next_asked_ = 0;  // of nodes_
  std::size_t most_queued_ = 0;
  RedisState counts_;
};

}  // namespace lintel
