// Under which keys a Redis server has sessions and states.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/sessions/storage/session_vault.h"

namespace lintel {

// Sessions lie in 4,096 buckets by how their ids begin, in the order of the ids; all of a bucket
// are in one slot of a cluster, and so is what is said of them together.
inline constexpr int kRedisBuckets = 4096;

// The bucket of an id, or of those that begin so. Ascending with the id, for arbitrary bytes; even
// where ids begin with random hexadecimal digits.
int redis_bucket(std::string_view id);

struct RedisKeys {
  explicit RedisKeys(int bucket);
  std::string session(const SessionVault::SessionId& id) const { return prefix + id + ":m"; }
  std::string values(const SessionVault::SessionId& id) const { return prefix + id + ":h"; }

  std::string prefix;  // of sessions
  std::string ids, expiries, garbage;
  int slot = 0;
};

// A state lies in a slot of its own: sessions that were forked share it.
struct RedisStateKeys {
  explicit RedisStateKeys(std::uint64_t where);

  std::string bytes, sessions;
  int slot = 0;
};

// 16 hexadecimal digits each.
std::string redis_state_names(const std::vector<SessionVault::StateRef>& states);
std::string redis_state_name(std::uint64_t where);
std::uint64_t redis_state_where(std::string_view name);

}  // namespace lintel
