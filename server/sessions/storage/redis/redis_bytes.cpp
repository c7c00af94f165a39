#include "server/sessions/storage/redis/redis_bytes.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

namespace lintel {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Digest digest_from(const std::string& bytes) {
  Digest digest;
  if (bytes.size() == digest.bytes.size()) {
    std::ranges::copy(std::as_bytes(std::span(bytes)), digest.bytes.begin());
  }
  return digest;
}

std::string pack_values(std::span<const std::int32_t> values, int width) {
  std::string bytes;
  bytes.reserve(values.size() * static_cast<std::size_t>(width));
  for (const std::int32_t value : values) {
    for (int i = 0; i < width; ++i) {
      bytes.push_back(static_cast<char>(static_cast<std::uint32_t>(value) >> (8 * i)));
    }
  }
  return bytes;
}

bool unpack_values(const std::string& bytes, int width, std::span<std::int32_t> values) {
  if ((width != 1 && width != 2 && width != 4) ||
      bytes.size() != values.size() * static_cast<std::size_t>(width)) {
    return false;
  }
  std::size_t at = 0;
  for (std::int32_t& value : values) {
    std::uint32_t bits = 0;
    for (int i = 0; i < width; ++i) {
      bits |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at++])) << (8 * i);
    }
    value = static_cast<std::int32_t>(bits);
  }
  return true;
}

std::vector<RedisAnswer> ask_all(RedisClient& client, std::vector<RedisRequest> requests) {
  std::vector<RedisAnswer> answers(requests.size());
  if (requests.empty()) return answers;
  std::atomic<std::size_t> left{requests.size()};
  std::promise<void> all;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].done = [&, i](RedisAnswer answer) {
      answers[i] = std::move(answer);
      if (left.fetch_sub(1) == 1) all.set_value();
    };
    client.ask(std::move(requests[i]));
  }
  all.get_future().wait();
  return answers;
}

}  // namespace lintel
