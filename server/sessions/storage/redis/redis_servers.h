// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/core/clock.h"
#include "server/sessions/storage/redis/redis_protocol.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// RedisUrl: the Redis servers to begin with.

struct RedisAddress {
  std::string host;  // a name or an IP address, without brackets
  std::uint16_t port = 6379;

  auto operator<=>(const RedisAddress&) const = default;
};
std::string to_string(const RedisAddress& address);  // HOST:PORT, IPv6 in brackets

struct RedisUrl {
  std::vector<RedisAddress> servers;
  bool is_encrypted = false;

  bool operator==(const RedisUrl&) const = default;
};

// True if a text begins with redis:// or rediss://.
bool is_redis_url(std::string_view text);
// Parses redis://HOST:PORT[,HOST:PORT...], or rediss:// for TLS. Nothing: `*why` has the fault.
std::optional<RedisUrl> parse_redis_url(std::string_view text, std::string* why);

// The slot of a key in a Redis Cluster: 0 to 16383, by the text between its first braces.
int redis_slot(std::string_view key);

// NameLookups: the addresses of names, resolved outside of the thread that needs them.

struct SocketAddress {
  sockaddr_storage address{};
  socklen_t size = 0;
};

// The addresses of a name; if there are none, `why` has the reason.
struct LookedUp {
  std::vector<SocketAddress> addresses{};
  std::string why{};
};
using LookUpName = std::function<LookedUp(const RedisAddress& name)>;
// Asks the system's resolver, which may wait for servers for many seconds.
LookedUp look_up_by_system(const RedisAddress& name);

// Each name is resolved by a detached thread of its own: a resolver that hangs delays nothing else.
// Used by one thread.
class NameLookups {
 public:
  // bell: an eventfd that is rung when a name was looked up. look_up: called by other threads, also
  // after this object is gone. Throws std::system_error.
  NameLookups(LookUpName look_up, int bell);
  ~NameLookups();

  // The result for a name; null: it is being resolved. IP addresses are known at once.
  std::shared_ptr<const LookedUp> find(const RedisAddress& name, TimePoint now);

 private:
  struct Shared;
  struct Lookup;

  const std::shared_ptr<Shared> shared_;
  std::map<RedisAddress, std::shared_ptr<Lookup>> lookups_;
};

// The Redis servers to use, and the parameters of connections to them.

struct RedisOptions {
  RedisUrl url{};
  std::string user{}, password{};  // password empty: no login
  // Names of files. ca: empty: the system's; certificate and key: both or neither.
  std::string ca{}, certificate{}, key{};
  // The number of replicas that must have a write before it is done; nothing: one, if there are
  // any.
  std::optional<int> wait_replicas{};
  std::chrono::milliseconds wait{50};          // for them
  Duration timeout = std::chrono::seconds(3);  // of a request, including a search for new masters
  Duration silence = std::chrono::seconds(1);  // of a server that has to answer
  std::vector<const RedisScript*> scripts{};   // loaded with each connection; outlive the client
  LookUpName look_up_name = look_up_by_system;
};

struct RedisState {
  bool is_away = false;
  std::string why{};       // if it is away
  std::size_t queued = 0;  // requests that have not been answered
  std::size_t masters = 0;
  std::uint64_t reconnects = 0, redirects = 0;
  std::uint64_t short_waits = 0;  // pipelines that reached too few replicas in time
};

// The keys of sessions and states on a Redis server.

// Sessions are in 4,096 buckets by the beginnings of their ids, in the order of the ids; all of a
// bucket are in one slot of a cluster, and so is the data about all of them.
inline constexpr int kRedisBuckets = 4096;

// The bucket of an id, or of ids that begin with it. Ascending with the id, for arbitrary bytes;
// even for ids that begin with random hexadecimal digits.
int redis_bucket(std::string_view id);

struct RedisKeys {
  explicit RedisKeys(int bucket);
  std::string session(const SessionStorage::SessionId& id) const { return prefix + id + ":m"; }
  std::string tokens(const SessionStorage::SessionId& id) const { return prefix + id + ":h"; }
  std::string document(const std::string& id) const { return prefix + id + ":d"; }

  std::string prefix;  // of sessions
  std::string ids, expiries, garbage;
  int slot = 0;
};

// A state is in a slot of its own: sessions that were forked share it.
struct RedisStateKeys {
  explicit RedisStateKeys(std::uint64_t where);

  std::string bytes, sessions;
  int slot = 0;
};

// Names of states: 16 hexadecimal digits each.
std::string redis_state_names(const std::vector<SessionStorage::StateRef>& states);
std::string redis_state_name(std::uint64_t where);
std::uint64_t redis_state_where(std::string_view name);

}  // namespace lintel
