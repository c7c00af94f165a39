#include "server/sessions/storage/redis/redis_url.h"

#include <charconv>

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

}  // namespace lintel
