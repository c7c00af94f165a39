// RedisUrl: which Redis servers to begin with.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

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

// Whether a text means Redis: begins with redis:// or rediss://.
bool is_redis_url(std::string_view text);
// redis://HOST:PORT[,HOST:PORT...], or rediss:// for TLS. Nothing: `*why` says what is wrong.
std::optional<RedisUrl> parse_redis_url(std::string_view text, std::string* why);

// The slot of a key in a Redis Cluster: 0 to 16383, of what is between its first braces.
int redis_slot(std::string_view key);

}  // namespace lintel
