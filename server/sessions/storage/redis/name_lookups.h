// NameLookups: the addresses of names, looked up outside of the thread that needs them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/sessions/storage/redis/redis_url.h"

namespace lintel {

struct SocketAddress {
  sockaddr_storage address{};
  socklen_t size = 0;
};

// What a name stands for. Empty addresses: `why` says why.
struct LookedUp {
  std::vector<SocketAddress> addresses{};
  std::string why{};
};
using LookUpName = std::function<LookedUp(const RedisAddress& name)>;
// Asks the system, which may take as long as its resolver waits for servers: many seconds.
LookedUp look_up_by_system(const RedisAddress& name);

// Each name is looked up by a detached thread of its own: a resolver that hangs holds up nothing
// else. Used by one thread.
class NameLookups {
 public:
  // bell: an eventfd that is rung when a name was looked up. look_up: called by other threads, also
  // after this object is gone. Throws std::system_error.
  NameLookups(LookUpName look_up, int bell);
  ~NameLookups();

  // What is known of a name. Null: it is being looked up. IP addresses are known at once.
  std::shared_ptr<const LookedUp> find(const RedisAddress& name, TimePoint now);

 private:
  struct Shared;
  struct Lookup;

  const std::shared_ptr<Shared> shared_;
  std::map<RedisAddress, std::shared_ptr<Lookup>> lookups_;
};

}  // namespace lintel
