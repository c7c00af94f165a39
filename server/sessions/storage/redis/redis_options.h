// Which Redis servers are spoken to, and how.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/sessions/storage/redis/name_lookups.h"
#include "server/sessions/storage/redis/redis_request.h"
#include "server/sessions/storage/redis/redis_url.h"

namespace lintel {

struct RedisOptions {
  RedisUrl url{};
  std::string user{}, password{};  // password empty: no login
  // Files. ca: empty: the system's; certificate and key: both or neither.
  std::string ca{}, certificate{}, key{};
  // So many replicas have a write before it is done; nothing: one, where there are any.
  std::optional<int> wait_replicas{};
  std::chrono::milliseconds wait{50};          // for them
  Duration timeout = std::chrono::seconds(3);  // of a request, the search for new masters included
  Duration silence = std::chrono::seconds(1);  // of a server that is to answer
  std::vector<const RedisScript*> scripts{};   // loaded with each connection; outlive the client
  LookUpName look_up_name = look_up_by_system;
};

struct RedisState {
  bool is_away = false;
  std::string why{};       // where it is
  std::size_t queued = 0;  // requests that have not been answered
  std::size_t masters = 0;
  std::uint64_t reconnects = 0, redirects = 0;
  std::uint64_t short_waits = 0;  // pipelines that too few replicas had in time
};

}  // namespace lintel
