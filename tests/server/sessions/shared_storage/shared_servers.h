// SPDX-License-Identifier: Apache-2.0
// Servers with one store.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/sessions/restart/server_process.h"

namespace lintel::testing {

// The address as --session-store takes it.
inline std::string url_of(const Endpoint& redis) { return "redis://" + redis.text(); }
inline std::string url_of(const RedisServer& redis) { return url_of(redis.endpoint()); }

// Flags of a server that has its sessions there.
inline std::vector<std::string> flags_with(const Files& files, const std::string& store,
                                           const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = files.flags(more);
  *(std::ranges::find(flags, "--session-store") + 1) = store;
  return flags;
}

}  // namespace lintel::testing
