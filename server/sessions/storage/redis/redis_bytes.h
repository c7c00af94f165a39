// What scripts take and give, as bytes; and many questions at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/digest.h"
#include "server/sessions/storage/redis/redis_client.h"

namespace lintel {

// The largest row that is stored, and taken back from a server.
inline constexpr std::size_t kMostRedisRowBytes = std::size_t{16} << 20;

std::string text_of(std::span<const std::byte> bytes);
Digest digest_from(const std::string& bytes);  // zeros where it is none

// width: 1, 2 or 4 bytes each, little-endian.
std::string pack_values(std::span<const std::int32_t> values, int width);
// False: `bytes` are not so many values of that width.
bool unpack_values(const std::string& bytes, int width, std::span<std::int32_t> values);

// Waits for all.
std::vector<RedisAnswer> ask_all(RedisClient& client, std::vector<RedisRequest> requests);

}  // namespace lintel
