// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_client.h"

#include <openssl/sha.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "server/core/threads.h"
#include "server/sessions/storage/redis/redis_servers.h"

namespace lintel {
namespace {

std::string info_field(const std::string& info, const std::string& name) {
  const std::string key = name + ":";
  std::size_t at = info.starts_with(key) ? 0 : info.find("\n" + key);
  if (at == std::string::npos) return "";
  at = info.find(':', at) + 1;
  return info.substr(at, info.find_first_of("\r\n", at) - at);
}

}  // namespace

RedisFacts parse_redis_info(const std::string& info) {
  RedisFacts facts;
  facts.is_cluster = info_field(info, "cluster_enabled") == "1";
  facts.is_master = info_field(info, "role") == "master";
  facts.version = info_field(info, "redis_version");
  facts.eviction = info_field(info, "maxmemory_policy");
  const std::string replicas = info_field(info, "connected_slaves");
  std::from_chars(replicas.data(), replicas.data() + replicas.size(), facts.replicas);
  return facts;
}

std::string unusable(const RedisFacts& facts) {
  int major = 0;
  std::from_chars(facts.version.data(), facts.version.data() + facts.version.size(), major);
  if (major < 7) return "Redis " + facts.version + " is too old: 7.0 is needed";
  if (facts.eviction != "noeviction") {
    return "maxmemory-policy is " + facts.eviction +
           ", which throws stored sessions away: noeviction is needed";
  }
  return "";
}

std::optional<RedisSlots> parse_redis_slots(const RedisReply& reply, const RedisAddress& asked) {
  if (reply.kind != RedisReply::Kind::kList) return std::nullopt;
  RedisSlots slots;
  for (const RedisReply& range : reply.list) {
    if (range.list.size() < 3 || range.list[2].list.size() < 2) return std::nullopt;
    const RedisReply& master = range.list[2];
    RedisAddress address{master.at(0), static_cast<std::uint16_t>(master.number_at(1))};
    if (address.host.empty() || address.host == "?") address.host = asked.host;
    slots.ranges.push_back({static_cast<int>(range.number_at(0)),
                            static_cast<int>(range.number_at(1)), address,
                            static_cast<int>(range.list.size()) - 3});
  }
  return slots;
}

// RedisLoop: the work of a RedisClient's thread.

// Used by one thread, except the constructor.
class RedisLoop {
 public:
  // bell: an eventfd, rung when requests are queued. opened: called once, by turn(): empty when the
  // servers are known, else why none can be used. Throws std::runtime_error for files of TLS.
  RedisLoop(const RedisOptions& options, int bell, std::function<void(std::string)> opened);
  ~RedisLoop();

  // Takes a request. If it throws, the request is unchanged or answered.
  void take(RedisRequest&& request);
  // Waits briefly for events, and handles them.
  void turn();
  // Sends again requests that were lost, or redirected, and are due.
  void send_again();
  // Answers all waiting requests with empty answers.
  void end();
  // Calls end() and restarts, after an exception, which leaves the progress of the work unknown.
  void begin_anew() noexcept;
  RedisState state() const;

 private:
  enum Lane { kReads = 0, kWrites = 1 };
  static constexpr int kSlots = 16384;

  // The node at an address; null: there are too many nodes.
  RedisNode* node_of(const RedisAddress& address);
  RedisLane& lane_of(RedisNode& node, const RedisErrand& errand) {
    return node.lanes[errand.request.is_write ? kWrites : kReads];
  }
  void route(RedisErrandPtr errand);
  void send_waiting(RedisNode& node, RedisLane& lane);
  void send(RedisLane& lane, const RedisErrandPtr& errand);
  // Connects, or waits for the address of the server's name.
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
  // The time after which the servers are asked for their facts again.
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
  bool had_replicas_ = false;  // true once a master of the cluster had some
  std::array<RedisNode*, kSlots> owners_{};
  std::vector<RedisErrandPtr> later_;  // to be routed again
  TimePoint now_ = std::chrono::steady_clock::now();

  bool is_stale_ = true;  // the map of slots
  bool is_searching_ = false;
  TimePoint next_refresh_{};
  TimePoint searched_since_ = now_;
  std::size_t next_asked_ = 0;  // of nodes_
  std::size_t most_queued_ = 0;
  RedisState counts_;
};

// RedisLoop: connections, requests and replies.

namespace {

using What = RedisLane::Expected::What;

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kMostBackoff = std::chrono::milliseconds(500);
constexpr Duration kTryAgain = std::chrono::milliseconds(20);
constexpr std::chrono::milliseconds kIdleTurn{500}, kBusyTurn{10};
constexpr std::size_t kMostInPipeline = 512;
constexpr std::size_t kMostNodes = 2048;  // a cluster has at most a thousand
constexpr RedisReplyBounds kMostOfOwn{RedisReplyBounds::kLeastBytes, 16};

// Temporary errors of a server.
constexpr const char* kPassing[] = {"TRYAGAIN",   "CLUSTERDOWN", "LOADING",
                                    "MASTERDOWN", "READONLY",    "BUSY"};

// The address in "MOVED 3999 127.0.0.1:6381"; without a host, or with "?", the host of the server
// that sent it.
std::optional<RedisAddress> address_in(const std::string& redirect, const RedisAddress& asked) {
  const std::size_t space = redirect.rfind(' ');
  const std::size_t colon = redirect.rfind(':');
  if (space == std::string::npos || colon == std::string::npos || colon < space) {
    return std::nullopt;
  }
  const int port = std::atoi(redirect.c_str() + colon + 1);
  if (port <= 0 || port > 65535) return std::nullopt;
  const std::string host = redirect.substr(space + 1, colon - space - 1);
  return RedisAddress{host.empty() || host == "?" ? asked.host : host,
                      static_cast<std::uint16_t>(port)};
}

}  // namespace

RedisLoop::RedisLoop(const RedisOptions& options, int bell, std::function<void(std::string)> opened)
    : options_(options),
      bell_(bell),
      lookups_(options.look_up_name, bell),
      opened_(std::move(opened)) {
  if (options_.url.is_encrypted) {
    tls_ = std::make_unique<RedisTls>(options_.ca, options_.certificate, options_.key);
  }
  for (const RedisAddress& address : options_.url.servers) node_of(address);
}

RedisLoop::~RedisLoop() = default;

RedisNode* RedisLoop::node_of(const RedisAddress& address) {
  for (const auto& node : nodes_) {
    if (node->address == address) return node.get();
  }
  if (nodes_.size() >= kMostNodes) return nullptr;
  auto node = std::make_unique<RedisNode>();
  node->address = address;
  nodes_.push_back(std::move(node));
  return nodes_.back().get();
}

void RedisLoop::take(RedisRequest&& request) {
  auto errand = std::make_shared<RedisErrand>();
  errand->request = std::move(request);
  errand->deadline = std::chrono::steady_clock::now() + options_.timeout;
  route(std::move(errand));
}

void RedisLoop::route(RedisErrandPtr errand) {
  RedisNode* node = errand->pinned;
  if (node == nullptr) node = owners_[static_cast<std::size_t>(errand->request.slot)];
  if (node == nullptr) {
    is_stale_ = true;
    return again(std::move(errand), kTryAgain);
  }
  RedisLane& lane = lane_of(*node, *errand);
  // It has been away for longer than any request waits, and its retry is not due yet.
  if (lane.down_since && now_ - *lane.down_since > options_.timeout && now_ < lane.retry_at) {
    return finish(*errand, false);
  }
  lane.waiting.push_back(std::move(errand));
}

void RedisLoop::again(RedisErrandPtr errand, Duration pause) {
  errand->not_before = now_ + pause;
  later_.push_back(std::move(errand));
}

void RedisLoop::finish(RedisErrand& errand, bool arrived) {
  errand.answer.arrived = arrived;
  errand.tell();
}

void RedisLoop::send_again() {
  now_ = std::chrono::steady_clock::now();
  std::vector<RedisErrandPtr> due;
  std::erase_if(later_, [&](const RedisErrandPtr& errand) {
    if (errand->not_before > now_ && errand->deadline > now_) return false;
    due.push_back(errand);
    return true;
  });
  for (RedisErrandPtr& errand : due) {
    if (errand->deadline <= now_) {
      finish(*errand, false);
    } else {
      route(std::move(errand));
    }
  }
}

void RedisLoop::turn() {
  now_ = std::chrono::steady_clock::now();
  refresh();
  std::vector<pollfd> polled{{bell_, POLLIN, 0}};
  std::vector<std::pair<RedisNode*, RedisLane*>> lanes;
  bool is_busy = !later_.empty() || is_searching_ || opened_;
  bool has_more = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    for (RedisLane& lane : nodes_[i]->lanes) {
      look_after(*nodes_[i], lane);
      is_busy = is_busy || !lane.waiting.empty() || !lane.expected.empty();
      if (!lane.link.is_open()) continue;
      has_more = has_more || lane.link.has_more();
      polled.push_back({lane.link.fd(), lane.link.events(), 0});
      lanes.emplace_back(nodes_[i].get(), &lane);
    }
  }
  const auto pause = has_more ? std::chrono::milliseconds(0) : is_busy ? kBusyTurn : kIdleTurn;
  ::poll(polled.data(), polled.size(), static_cast<int>(pause.count()));
  now_ = std::chrono::steady_clock::now();
  if (polled[0].revents != 0) {
    eventfd_t rung = 0;
    ::eventfd_read(bell_, &rung);
  }
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    auto& [node, lane] = lanes[i];
    const bool is_due = polled[i + 1].revents != 0 || lane->link.has_more();
    if (!is_due || !lane->link.is_open()) continue;
    const bool is_well = lane->link.move();
    take_replies(*node, *lane);
    if (lane->link.is_open() && lane->expected.empty() && lane->link.has_bytes()) {
      lane->link.fail("it sent an answer that no request asked for");
    }
    if (!is_well || !lane->link.is_open()) lose(*node, *lane, lane->link.why());
  }
}

void RedisLoop::look_after(RedisNode& node, RedisLane& lane) {
  expire(lane);
  if (!lane.link.is_open()) {
    const bool is_missed = node.is_master && lane.down_since;
    const bool is_due = (!lane.waiting.empty() || is_missed) && now_ >= lane.retry_at;
    if (lane.is_looking_up || is_due) connect(node, lane);
    return;
  }
  const Duration silent =
      lane.expected.empty() ? Duration::zero() : now_ - lane.expected.front().sent;
  if (silent > options_.silence + options_.wait ||
      (!lane.is_ready && now_ - lane.began > options_.silence)) {
    lane.link.close();
    return lose(node, lane, "it does not answer");
  }
  if (lane.link.is_up() && !lane.is_ready && lane.expected.empty()) log_in(lane);
  if (lane.is_ready) send_waiting(node, lane);
}

void RedisLoop::expire(RedisLane& lane) {
  std::erase_if(lane.waiting, [&](const RedisErrandPtr& errand) {
    if (errand->deadline > now_) return false;
    finish(*errand, false);
    return true;
  });
  for (RedisLane::Expected& each : lane.expected) {
    if (each.errand != nullptr && each.errand->deadline <= now_) finish(*each.errand, false);
  }
  std::erase_if(lane.done, [&](const RedisErrandPtr& errand) {
    if (errand->deadline > now_) return false;
    finish(*errand, false);
    return true;
  });
}

void RedisLoop::connect(RedisNode& node, RedisLane& lane) {
  if (!std::exchange(lane.is_looking_up, true)) lane.began = now_;
  lane.is_ready = false;
  const std::shared_ptr<const LookedUp> found = lookups_.find(node.address, now_);
  if (found == nullptr) {
    if (now_ - lane.began > options_.silence) lose(node, lane, "its name is not looked up in time");
    return;
  }
  lane.is_looking_up = false;
  lane.began = now_;
  if (found->addresses.empty()) return lose(node, lane, found->why);
  const bool is_begun =
      lane.link.connect(node.address.host, found->addresses, tls_.get()) && lane.link.move();
  if (!is_begun) lose(node, lane, lane.link.why());
}

void RedisLoop::log_in(RedisLane& lane) {
  const auto expect = [&](What what, const std::vector<std::string>& command) {
    lane.link.send(encode_redis_command(command));
    lane.expected.push_back({.what = what, .sent = now_});
  };
  if (options_.password.empty()) {
    lane.is_ready = true;
  } else if (options_.user.empty()) {
    expect(What::kLogin, {"AUTH", options_.password});
  } else {
    expect(What::kLogin, {"AUTH", options_.user, options_.password});
  }
  for (const RedisScript* const script : options_.scripts) {
    expect(What::kLoad, {"SCRIPT", "LOAD", script->text});
  }
  if (lane.expected.empty()) came_up(lane);
}

void RedisLoop::came_up(RedisLane& lane) {
  lane.backoff = {};
  lane.down_since.reset();
}

void RedisLoop::send_waiting(RedisNode& node, RedisLane& lane) {
  if (lane.waiting.empty()) return;
  const bool is_write = &lane == &node.lanes[kWrites];
  // One pipeline of writes at a time: writes that come meanwhile are sent together in the next one.
  if (is_write && !lane.expected.empty()) return;
  std::size_t count = 0;
  for (; count < kMostInPipeline && !lane.waiting.empty(); ++count) {
    send(lane, lane.waiting.front());
    lane.waiting.pop_front();
  }
  const int replicas = is_write ? replicas_of(node) : 0;
  if (replicas > 0) {
    lane.link.send(
        encode_redis_command({"WAIT", std::to_string(replicas),
                              std::to_string(std::max<std::int64_t>(options_.wait.count(), 1))}));
    lane.expected.push_back({.what = What::kWait, .sent = now_});
  }
  if (!lane.link.flush()) lose(node, lane, lane.link.why());
}

int RedisLoop::replicas_of(const RedisNode& node) const {
  return options_.wait_replicas.value_or(std::min(std::max(node.replicas, node.linked), 1));
}

void RedisLoop::send(RedisLane& lane, const RedisErrandPtr& errand) {
  if (errand->asks) {
    lane.link.send(encode_redis_command({"ASKING"}));
    lane.expected.push_back({.what = What::kAsking, .sent = now_});
  }
  const RedisRequest& request = errand->request;
  std::vector<std::string> command;
  if (request.script != nullptr) {
    command = {errand->by_text ? "EVAL" : "EVALSHA",
               errand->by_text ? request.script->text : request.script->sha1,
               std::to_string(request.keys.size())};
    command.insert(command.end(), request.keys.begin(), request.keys.end());
  }
  command.insert(command.end(), request.words.begin(), request.words.end());
  lane.link.send(encode_redis_command(command));
  lane.expected.push_back({.what = What::kErrand, .errand = errand, .sent = now_});
}

void RedisLoop::take_replies(RedisNode& node, RedisLane& lane) {
  while (!lane.expected.empty()) {
    std::optional<RedisReply> reply = lane.link.next(bounds_of(lane.expected.front()));
    if (!reply) {
      // A reply that is beyond its bounds would be so again.
      const RedisErrandPtr& errand = lane.expected.front().errand;
      if (lane.link.has_bad_reply() && errand != nullptr) finish(*errand, false);
      break;
    }
    RedisLane::Expected expected = std::move(lane.expected.front());
    lane.expected.pop_front();
    if (!lane.expected.empty()) lane.expected.front().sent = now_;  // the server still answers
    const bool is_refused = expected.what == What::kLogin && reply->is_error();
    if (!is_refused) came_up(lane);
    switch (expected.what) {
      case What::kLogin:
        if (is_refused) {
          lane.link.close();
          return lose(node, lane, reply->text);
        }
        lane.is_ready = true;
        break;
      case What::kLoad:
        if (reply->is_error() && !reply->is_error("LOADING")) lane.why = reply->text;
        break;
      case What::kAsking:
        break;
      case What::kErrand: {
        const bool waits = std::ranges::any_of(
            lane.expected, [](const auto& each) { return each.what == What::kWait; });
        take_reply(node.address, lane, expected.errand, *std::move(reply), waits);
        break;
      }
      case What::kWait: {
        const bool is_enough = !reply->is_error() && reply->number >= replicas_of(node);
        if (!is_enough) {
          ++counts_.short_waits;
          is_stale_ = true;  // a replica may be gone for good
        }
        for (const RedisErrandPtr& errand : std::exchange(lane.done, {})) {
          errand->answer.is_replicated = is_enough;
          finish(*errand, true);
        }
        break;
      }
    }
  }
  if (lane.is_ready && lane.link.is_open()) send_waiting(node, lane);
}

RedisReplyBounds RedisLoop::bounds_of(const RedisLane::Expected& expected) const {
  return expected.errand == nullptr ? kMostOfOwn : expected.errand->request.most;
}

void RedisLoop::take_reply(const RedisAddress& asked, RedisLane& lane, const RedisErrandPtr& errand,
                           RedisReply reply, bool waits) {
  if (errand->request.done == nullptr) return;  // no caller waits for it any more
  errand->asks = false;
  if (reply.is_error("NOSCRIPT") && !errand->by_text) {
    errand->by_text = true;
    return again(errand, {});
  }
  const bool is_moved = reply.is_error("MOVED");
  if ((is_moved || reply.is_error("ASK")) && errand->pinned == nullptr) {
    ++counts_.redirects;
    const std::optional<RedisAddress> address = address_in(reply.text, asked);
    if (RedisNode* const found = address ? node_of(*address) : nullptr) {
      RedisNode& node = *found;
      errand->by_text = false;
      if (is_moved) {
        owners_[static_cast<std::size_t>(errand->request.slot)] = &node;
        node.is_master = true;
        is_stale_ = true;
        return again(errand, {});
      }
      errand->asks = true;
      lane_of(node, *errand).waiting.push_back(errand);
      return;
    }
  }
  for (const char* const passing : kPassing) {
    if (!reply.is_error(passing) || errand->pinned != nullptr) continue;
    is_stale_ = is_stale_ || !reply.is_error("TRYAGAIN");
    return again(errand, kTryAgain);
  }
  errand->answer.reply = std::move(reply);
  if (waits && !errand->answer.reply.is_error()) {
    lane.done.push_back(errand);
  } else {
    finish(*errand, true);
  }
}

void RedisLoop::lose(RedisNode& node, RedisLane& lane, const std::string& why) {
  ++counts_.reconnects;
  lane.is_ready = lane.is_looking_up = false;
  lane.why = to_string(node.address) + ": " + why;
  if (!lane.down_since) lane.down_since = now_;
  lane.backoff = std::clamp(lane.backoff * 2, kFirstBackoff, kMostBackoff);
  lane.retry_at = now_ + lane.backoff;
  is_stale_ = true;
  // Sent requests come first, and are sent again: their outcome is unknown.
  std::deque<RedisErrandPtr> errands(lane.done.begin(), lane.done.end());
  for (RedisLane::Expected& each : lane.expected) {
    if (each.errand != nullptr && each.errand->request.done) errands.push_back(each.errand);
  }
  for (RedisErrandPtr& errand : lane.waiting) errands.push_back(std::move(errand));
  lane.done.clear();
  lane.expected.clear();
  lane.waiting.clear();
  for (RedisErrandPtr& errand : errands) {
    if (errand->pinned != nullptr) {
      finish(*errand, false);
    } else {
      errand->by_text = errand->asks = false;
      again(std::move(errand), {});
    }
  }
}

void RedisLoop::end() {
  for (const RedisErrandPtr& errand : std::exchange(later_, {})) finish(*errand, false);
  for (const auto& node : nodes_) {
    for (RedisLane& lane : node->lanes) {
      lane.link.close();
      for (const RedisErrandPtr& errand : lane.done) finish(*errand, false);
      for (const RedisLane::Expected& each : lane.expected) {
        if (each.errand != nullptr) finish(*each.errand, false);
      }
      for (const RedisErrandPtr& errand : lane.waiting) finish(*errand, false);
      lane.done.clear();
      lane.expected.clear();
      lane.waiting.clear();
    }
  }
}

void RedisLoop::begin_anew() noexcept {
  // Dropped errands are answered by their destructor.
  later_.clear();
  for (const auto& node : nodes_) {
    for (RedisLane& lane : node->lanes) {
      lane.link.close();
      lane.is_ready = lane.is_looking_up = false;
      if (!lane.down_since) lane.down_since = now_;
      lane.retry_at = now_ + kFirstBackoff;
      lane.done.clear();
      lane.expected.clear();
      lane.waiting.clear();
    }
  }
  is_searching_ = false;
  is_stale_ = true;
}

RedisState RedisLoop::state() const {
  RedisState state = counts_;
  state.queued = later_.size();
  for (const auto& node : nodes_) {
    if (!node->is_master) continue;
    ++state.masters;
    for (const RedisLane& lane : node->lanes) {
      state.queued += lane.waiting.size() + lane.expected.size();
      if (!lane.down_since) continue;
      state.is_away = true;
      state.why = lane.why;
    }
  }
  return state;
}

// RedisLoop: finding the servers and the slots of each.

namespace {

constexpr Duration kLookAgain = std::chrono::seconds(10);
// The interval for a cluster with a master that has lost its replicas: it waits for no replica
// until its own is known to be back.
constexpr Duration kMissReplica = std::chrono::milliseconds(250);
constexpr Duration kSearchAgain = std::chrono::milliseconds(50);
constexpr Duration kOpenTime = std::chrono::seconds(5);

}  // namespace

void RedisLoop::pin(RedisNode& node, std::vector<std::string> command, const RedisReplyBounds& most,
                    std::function<void(RedisAnswer)> done) {
  auto errand = std::make_shared<RedisErrand>();
  errand->request.most = most;
  errand->request.words = std::move(command);
  errand->request.done = std::move(done);
  errand->pinned = &node;
  errand->deadline = now_ + options_.silence;
  node.lanes[kReads].waiting.push_back(std::move(errand));
}

Duration RedisLoop::look_again() const {
  const auto has_none = [](const auto& node) { return node->is_master && node->replicas == 0; };
  const bool misses_one = had_replicas_ && std::ranges::any_of(nodes_, has_none);
  return misses_one ? kMissReplica : kLookAgain;
}

void RedisLoop::refresh() {
  if (is_searching_ || now_ < next_refresh_) return;
  if (!is_stale_ && is_known_ && now_ < searched_since_ + look_again()) return;
  if (!is_stale_) searched_since_ = now_;
  // Asks the next server that may be up; one that was just lost is not asked again at once.
  for (std::size_t tried = 0; tried < nodes_.size(); ++tried) {
    RedisNode& node = *nodes_[next_asked_++ % nodes_.size()];
    const RedisLane& lane = node.lanes[kReads];
    if (!lane.link.is_open() && now_ < lane.retry_at) continue;
    is_searching_ = true;
    return ask_for_facts(node, /*then_slots=*/true);
  }
  next_refresh_ = now_ + kSearchAgain;
}

void RedisLoop::ask_for_facts(RedisNode& node, bool then_slots) {
  pin(node, {"INFO"}, kMostRedisInfo, [this, &node, then_slots](const RedisAnswer& answer) {
    took_facts(node, answer, then_slots);
  });
}

void RedisLoop::took_facts(RedisNode& node, const RedisAnswer& answer, bool then_slots) {
  if (!answer.arrived || answer.reply.is_error()) {
    node.is_known = true;  // as far as possible
    const std::string why = answer.arrived ? to_string(node.address) + ": " + answer.reply.text
                                           : node.lanes[kReads].why;
    if (then_slots) search_on(why);
    return opened_unless_unknown();
  }
  const RedisFacts facts = parse_redis_info(answer.reply.text);
  if (const std::string why = unusable(facts); !why.empty()) {
    if (opened_) return tell_opened(to_string(node.address) + ": " + why);
    node.lanes[kWrites].why = to_string(node.address) + ": " + why;
  }
  node.is_known = true;
  node.linked = facts.replicas;
  if (!then_slots) return opened_unless_unknown();
  if (facts.is_cluster) {
    return pin(node, {"CLUSTER", "SLOTS"}, RedisSlots::kMost,
               [this, &node](const RedisAnswer& slots) { took_slots(node, slots); });
  }
  if (!facts.is_master) return search_on(to_string(node.address) + ": is a replica");
  is_cluster_ = false;
  for (const auto& each : nodes_) each->is_master = each.get() == &node;
  owners_.fill(&node);
  // A lost replica still counts: without it a write is not acknowledged.
  node.replicas = std::max(node.replicas, facts.replicas);
  is_known_ = true;
  is_stale_ = is_searching_ = false;
  searched_since_ = now_;
  opened_unless_unknown();
}

void RedisLoop::took_slots(RedisNode& node, const RedisAnswer& answer) {
  std::optional<RedisSlots> slots;
  if (answer.arrived) slots = parse_redis_slots(answer.reply, node.address);
  if (!slots || slots->ranges.empty()) {
    return search_on(to_string(node.address) + ": knows no slots of its cluster");
  }
  for (const RedisSlots::Range& range : slots->ranges) {
    if (node_of(range.master) == nullptr) {
      return search_on(to_string(node.address) + ": names too many servers");
    }
  }
  use(*slots);
}

void RedisLoop::use(const RedisSlots& slots) {
  is_cluster_ = is_known_ = true;
  for (const auto& each : nodes_) each->is_master = false;
  for (const RedisSlots::Range& range : slots.ranges) {
    RedisNode& node = *node_of(range.master);
    node.is_master = true;
    node.replicas = range.replicas;
    had_replicas_ |= range.replicas > 0;
    for (int slot = std::max(range.first, 0); slot <= std::min(range.last, kSlots - 1); ++slot) {
      owners_[static_cast<std::size_t>(slot)] = &node;
    }
  }
  for (const auto& each : nodes_) {
    const bool is_asked = each->is_known && !each->lanes[kReads].waiting.empty();
    if (each->is_master && !is_asked) ask_for_facts(*each, /*then_slots=*/false);
  }
  is_stale_ = is_searching_ = false;
  searched_since_ = now_;
  // Requests that wait for a former master go to the new one.
  for (const auto& node : nodes_) {
    for (RedisLane& lane : node->lanes) {
      if (!node->is_master) lane.down_since.reset();
      std::deque<RedisErrandPtr> waiting = std::exchange(lane.waiting, {});
      for (RedisErrandPtr& errand : waiting) {
        RedisNode* const owner = owners_[static_cast<std::size_t>(errand->request.slot)];
        if (errand->pinned != nullptr || errand->asks || owner == node.get()) {
          lane.waiting.push_back(std::move(errand));
        } else {
          again(std::move(errand), {});
        }
      }
    }
  }
  // While a master is away, its slots may move at any moment.
  const bool misses_one = std::ranges::any_of(nodes_, [](const auto& node) {
    return node->is_master && std::ranges::any_of(node->lanes, [](const RedisLane& lane) {
             return lane.down_since.has_value();
           });
  });
  is_stale_ = misses_one;
  next_refresh_ = now_ + kSearchAgain;
  opened_unless_unknown();
}

void RedisLoop::search_on(const std::string& why) {
  is_searching_ = false;
  is_stale_ = true;
  next_refresh_ = now_ + kSearchAgain;
  if (!opened_) return;
  // A refusal would be repeated.
  const bool is_final =
      why.find("WRONGPASS") != std::string::npos || why.find("NOAUTH") != std::string::npos ||
      why.find("NOPERM") != std::string::npos || why.find("certificate") != std::string::npos;
  if (is_final || now_ - searched_since_ > kOpenTime)
    tell_opened(why.empty() ? "no server answers" : why);
}

void RedisLoop::opened_unless_unknown() {
  if (!opened_ || !is_known_) return;
  for (const auto& node : nodes_) {
    if (node->is_master && !node->is_known) return;
  }
  tell_opened("");
}

void RedisLoop::tell_opened(const std::string& why) {
  if (opened_) std::exchange(opened_, nullptr)(why);
}

namespace {

constexpr std::chrono::milliseconds kAfterFailure{10};

}  // namespace

RedisScript RedisScript::of(std::string text) {
  std::array<unsigned char, SHA_DIGEST_LENGTH> hash{};
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  std::string hex;
  for (const unsigned char byte : hash) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return {std::move(text), std::move(hex)};
}

RedisClient::RedisClient(const RedisOptions& options)
    : bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (bell_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  std::promise<std::string> opened;
  try {
    loop_ = std::make_unique<RedisLoop>(options, bell_,
                                        [&](std::string why) { opened.set_value(std::move(why)); });
  } catch (...) {
    ::close(bell_);
    throw;
  }
  thread_ = std::thread([this] {
    while (run_once()) {
    }
    survives(ServerThread::kRedis, [this] { loop_->end(); });
    loop_->begin_anew();
  });
  const std::string why = opened.get_future().get();
  if (why.empty()) return;
  stop();
  ::close(bell_);
  throw RedisError(why);
}

bool RedisClient::run_once() noexcept {
  std::vector<RedisRequest> asked;
  {
    MutexLock lock(mutex_);
    if (is_closing_) return false;
    asked.swap(asked_);
  }
  const bool is_well = survives(ServerThread::kRedis, [&] {
    // Earlier requests that are sent again come first.
    loop_->send_again();
    for (RedisRequest& request : asked) loop_->take(std::move(request));
    loop_->turn();
    RedisState state = loop_->state();
    MutexLock lock(mutex_);
    state_ = std::move(state);
  });
  if (is_well) return true;
  loop_->begin_anew();
  for (RedisRequest& request : asked) {
    if (!request.done) continue;
    survives(ServerThread::kRedis, [&] { std::exchange(request.done, nullptr)({}); });
  }
  std::this_thread::sleep_for(kAfterFailure);  // without memory: some may be freed meanwhile
  return true;
}

RedisClient::~RedisClient() {
  stop();
  ::close(bell_);
}

void RedisClient::stop() {
  std::vector<RedisRequest> asked;
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
  }
  ::eventfd_write(bell_, 1);
  if (thread_.joinable()) thread_.join();
  {
    MutexLock lock(mutex_);
    asked.swap(asked_);
  }
  for (const RedisRequest& request : asked) request.done({});
}

void RedisClient::ask(RedisRequest request) {
  bool is_first = false, is_closing = false;
  {
    MutexLock lock(mutex_);
    is_closing = is_closing_;
    is_first = asked_.empty();
    if (!is_closing) asked_.push_back(std::move(request));
  }
  if (is_closing) return request.done({});
  if (is_first) ::eventfd_write(bell_, 1);
}

RedisAnswer RedisClient::ask_and_wait(RedisRequest request) {
  std::promise<RedisAnswer> promise;
  request.done = [&](RedisAnswer answer) { promise.set_value(std::move(answer)); };
  ask(std::move(request));
  return promise.get_future().get();
}

RedisState RedisClient::state() const {
  MutexLock lock(mutex_);
  return state_;
}

}  // namespace lintel
