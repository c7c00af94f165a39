// RedisLoop: connections, and what goes over them. redis_loop_servers.cpp finds the servers.
#include "server/sessions/storage/redis/redis_loop.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "server/sessions/storage/redis/redis_client.h"

namespace lintel {
namespace {

using What = RedisLane::Expected::What;

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kMostBackoff = std::chrono::milliseconds(500);
constexpr Duration kTryAgain = std::chrono::milliseconds(20);
constexpr std::chrono::milliseconds kIdleTurn{500}, kBusyTurn{10};
constexpr std::size_t kMostInPipeline = 512;
constexpr std::size_t kMostNodes = 2048;  // a cluster has a thousand at most
constexpr RedisReplyBounds kMostOfOwn{RedisReplyBounds::kLeastBytes, 16};

// Errors of a server that are of the moment.
constexpr const char* kPassing[] = {"TRYAGAIN",   "CLUSTERDOWN", "LOADING",
                                    "MASTERDOWN", "READONLY",    "BUSY"};

// MOVED 3999 127.0.0.1:6381; without a host, or with "?": that of who says so.
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
  // One pipeline of writes at a time: what comes meanwhile goes together with the next one.
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
      // One that does not fit would not fit when it is sent again, either.
      const RedisErrandPtr& errand = lane.expected.front().errand;
      if (lane.link.has_bad_reply() && errand != nullptr) finish(*errand, false);
      break;
    }
    RedisLane::Expected expected = std::move(lane.expected.front());
    lane.expected.pop_front();
    if (!lane.expected.empty()) lane.expected.front().sent = now_;  // it does answer
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
          is_stale_ = true;  // one may be gone for good
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
  // What was sent goes first, and again: its outcome is unknown.
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
  // What is dropped is answered by its end.
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

}  // namespace lintel
