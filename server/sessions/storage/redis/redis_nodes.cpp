#include "server/sessions/storage/redis/redis_nodes.h"

#include <charconv>

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

}  // namespace lintel
