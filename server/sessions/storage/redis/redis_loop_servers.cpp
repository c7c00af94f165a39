// RedisLoop: which servers there are, and which of them has which slots.
#include <algorithm>
#include <utility>

#include "server/sessions/storage/redis/redis_loop.h"

namespace lintel {
namespace {

constexpr Duration kLookAgain = std::chrono::seconds(10);
// Of a cluster where a master has no replica though there are some: it waits for none until its own
// is known to be back.
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
  // The next one that may be there; one that has just been lost is not asked again at once.
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
    node.is_known = true;  // as far as can be
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
  // A replica that was there is missed, not forgotten: without it a write is not done.
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
  // What waits for a master that is none any more goes to the new one.
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
  // While a master is away, who has its slots may change at any moment.
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
  // A refusal repeats itself.
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

}  // namespace lintel
