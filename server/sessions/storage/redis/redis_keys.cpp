#include "server/sessions/storage/redis/redis_keys.h"

#include <array>
#include <cstdio>

#include "server/sessions/storage/redis/redis_url.h"

namespace lintel {
namespace {

// Changes with what is kept under these keys.
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
    // No digit: before them all, between 9 and a, or after f. The rest does not matter.
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

std::string redis_state_names(const std::vector<SessionVault::StateRef>& states) {
  std::string names;
  for (const SessionVault::StateRef& state : states) names += redis_state_name(state.where);
  return names;
}

std::uint64_t redis_state_where(std::string_view name) {
  return std::stoull(std::string(name), nullptr, 16);
}

}  // namespace lintel
