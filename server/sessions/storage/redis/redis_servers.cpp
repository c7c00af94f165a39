// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_servers.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "server/core/threads.h"

namespace lintel {
namespace {

constexpr std::string_view kPlain = "redis://";
constexpr std::string_view kEncrypted = "rediss://";

std::optional<RedisAddress> parse_address(std::string_view text, std::string* why) {
  RedisAddress address;
  std::size_t colon = text.rfind(':');
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      *why = "'" + std::string(text) + "': ] is missing";
      return std::nullopt;
    }
    address.host = text.substr(1, end - 1);
    colon = end + 1 < text.size() ? end + 1 : std::string_view::npos;
  } else {
    address.host = text.substr(0, colon);
  }
  const char* const forbidden = text.starts_with('[') ? "/@?# " : ":/@?# ";
  if (address.host.empty() || (colon != std::string_view::npos && text[colon] != ':') ||
      address.host.find_first_of(forbidden) != std::string::npos) {
    *why = "'" + std::string(text) + "' is not HOST:PORT";
    return std::nullopt;
  }
  if (colon == std::string_view::npos) return address;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port == 0) {
    *why = "'" + std::string(port) + "' is no port: 1 to 65535";
    return std::nullopt;
  }
  return address;
}

// CRC-16/XMODEM, as Redis Cluster has it.
std::uint16_t crc16(std::string_view bytes) {
  std::uint16_t crc = 0;
  for (const char c : bytes) {
    crc = static_cast<std::uint16_t>(crc ^ (static_cast<std::uint8_t>(c) << 8));
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<std::uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
  }
  return crc;
}

}  // namespace

std::string to_string(const RedisAddress& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return (is_v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

bool is_redis_url(std::string_view text) {
  return text.starts_with(kPlain) || text.starts_with(kEncrypted);
}

std::optional<RedisUrl> parse_redis_url(std::string_view text, std::string* why) {
  RedisUrl url;
  url.is_encrypted = text.starts_with(kEncrypted);
  if (!is_redis_url(text)) {
    *why = "begins with neither redis:// nor rediss://";
    return std::nullopt;
  }
  std::string_view left = text.substr(url.is_encrypted ? kEncrypted.size() : kPlain.size());
  if (left.ends_with('/')) left.remove_suffix(1);
  if (left.find('@') != std::string_view::npos) {
    *why =
        "user and password come from a file, not from the address: "
        "--session-store-credentials";
    return std::nullopt;
  }
  while (true) {
    const std::size_t comma = left.find(',');
    const std::optional<RedisAddress> address = parse_address(left.substr(0, comma), why);
    if (!address) return std::nullopt;
    url.servers.push_back(*address);
    if (comma == std::string_view::npos) return url;
    left.remove_prefix(comma + 1);
  }
}

int redis_slot(std::string_view key) {
  const std::size_t open = key.find('{');
  if (open != std::string_view::npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return crc16(key) % 16384;
}

namespace {

constexpr Duration kGoodFor = std::chrono::seconds(1);
constexpr std::size_t kMostAtOnce = 16;
constexpr std::size_t kMostKept = 1024;

bool is_address(const std::string& host) {
  std::array<unsigned char, 16> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

LookedUp look_up(const RedisAddress& name, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* all = nullptr;
  const std::string port = std::to_string(name.port);
  const int error = getaddrinfo(name.host.c_str(), port.c_str(), &hints, &all);
  LookedUp found;
  if (error != 0) {
    found.why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return found;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(all, &freeaddrinfo);
  for (const addrinfo* each = all; each != nullptr; each = each->ai_next) {
    SocketAddress address;
    if (each->ai_addrlen > sizeof(address.address)) continue;
    std::memcpy(&address.address, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    found.addresses.push_back(address);
  }
  return found;
}

}  // namespace

LookedUp look_up_by_system(const RedisAddress& name) { return look_up(name, 0); }

// Outlives the object as long as a thread looks a name up.
struct NameLookups::Shared {
  Shared(LookUpName of, int rung) : look_up(std::move(of)), bell(::dup(rung)) {
    if (bell < 0) throw std::system_error(errno, std::generic_category(), "dup");
  }
  ~Shared() { ::close(bell); }

  const LookUpName look_up;
  const int bell;
  std::atomic<std::size_t> running{0};
};

struct NameLookups::Lookup {
  LookedUp found;  // once is_over
  TimePoint over_at{};
  std::atomic<bool> is_over{false};
};

NameLookups::NameLookups(LookUpName look_up, int bell)
    : shared_(std::make_shared<Shared>(std::move(look_up), bell)) {}

NameLookups::~NameLookups() = default;

std::shared_ptr<const LookedUp> NameLookups::find(const RedisAddress& name, TimePoint now) {
  if (is_address(name.host)) {
    return std::make_shared<LookedUp>(look_up(name, AI_NUMERICHOST | AI_NUMERICSERV));
  }
  if (const auto known = lookups_.find(name); known != lookups_.end()) {
    const std::shared_ptr<Lookup>& lookup = known->second;
    if (!lookup->is_over.load(std::memory_order_acquire)) return nullptr;
    if (now < lookup->over_at + kGoodFor) return {lookup, &lookup->found};
    lookups_.erase(known);
  }
  if (shared_->running >= kMostAtOnce || lookups_.size() >= kMostKept) {
    return std::make_shared<LookedUp>(LookedUp{.why = "too many names are being looked up"});
  }
  const auto lookup = std::make_shared<Lookup>();
  ++shared_->running;
  try {
    std::thread([shared = shared_, lookup, name] {
      const bool is_well =
          survives(ServerThread::kNameLookup, [&] { lookup->found = shared->look_up(name); });
      if (!is_well) lookup->found.addresses.clear();
      lookup->over_at = std::chrono::steady_clock::now();
      lookup->is_over.store(true, std::memory_order_release);
      --shared->running;
      ::eventfd_write(shared->bell, 1);
    }).detach();
  } catch (const std::exception& error) {  // no thread, or no memory for one
    --shared_->running;
    return std::make_shared<LookedUp>(LookedUp{.why = error.what()});
  }
  lookups_.emplace(name, lookup);
  return nullptr;
}

namespace {

// Changes with the format of the data under these keys.
constexpr const char* kFormat = "lintel1:";

}  // namespace

int redis_bucket(std::string_view id) {
  int bucket = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const char c = i < id.size() ? id[i] : '\0';
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit || (c >= 'a' && c <= 'f')) {
      bucket = bucket * 16 + (is_digit ? c - '0' : c - 'a' + 10);
      continue;
    }
    // Not a digit: before all of them, between 9 and a, or after f. The rest does not matter.
    const auto byte = static_cast<unsigned char>(c);
    const int before = byte < '0' ? 0 : byte < 'a' ? 10 : 16;  // digits that come before it
    const int place = i == 0 ? 256 : i == 1 ? 16 : 1;
    const int first = (bucket * 16 + before) * place;
    return before == 0 ? first : first - 1;
  }
  return bucket;
}

RedisKeys::RedisKeys(int bucket) {
  std::array<char, 8> tag{};
  std::snprintf(tag.data(), tag.size(), "{%03x}", static_cast<unsigned>(bucket) & 0xfff);
  prefix = std::string(kFormat) + tag.data() + ":";
  const std::string common = std::string(kFormat) + tag.data();
  ids = common + "ids";
  expiries = common + "expiries";
  garbage = common + "garbage";
  slot = redis_slot(tag.data());
}

RedisStateKeys::RedisStateKeys(std::uint64_t where) {
  const std::string tag = "{s" + redis_state_name(where) + "}";
  bytes = kFormat + tag + ":b";
  sessions = kFormat + tag + ":r";
  slot = redis_slot(tag);
}

std::string redis_state_name(std::uint64_t where) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(where));
  return text.data();
}

std::string redis_state_names(const std::vector<SessionStorage::StateRef>& states) {
  std::string names;
  for (const SessionStorage::StateRef& state : states) names += redis_state_name(state.where);
  return names;
}

std::uint64_t redis_state_where(std::string_view name) {
  return std::stoull(std::string(name), nullptr, 16);
}

}  // namespace lintel
