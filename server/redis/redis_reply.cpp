#include "server/redis/redis_reply.h"

#include <hiredis/hiredis.h>

#include <charconv>

namespace lintel {
namespace {

RedisReply converted(const redisReply& from) {
  RedisReply reply;
  switch (from.type) {
    case REDIS_REPLY_INTEGER:
      reply.kind = RedisReply::Kind::kNumber;
      reply.number = from.integer;
      break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
      reply.kind =
          from.type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText;
      reply.text.assign(from.str, static_cast<std::size_t>(from.len));
      break;
    case REDIS_REPLY_ARRAY:
      reply.kind = RedisReply::Kind::kList;
      for (std::size_t i = 0; i < from.elements; ++i) {
        reply.list.push_back(converted(*from.element[i]));
      }
      break;
    default:
      break;
  }
  return reply;
}

}  // namespace

struct RedisReplies::redisReaderHolder {
  redisReader* reader = redisReaderCreate();
};

const std::string& RedisReply::at(std::size_t i) const {
  static const std::string kNone;
  return i < list.size() ? list[i].text : kNone;
}

std::int64_t RedisReply::number_at(std::size_t i) const {
  if (i >= list.size()) return 0;
  if (list[i].kind == Kind::kNumber) return list[i].number;
  std::int64_t value = 0;
  const std::string& digits = list[i].text;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

RedisReplies::RedisReplies() : reader_(new redisReaderHolder) {
  reader_->reader->maxbuf = 0;  // the buffer is kept from reply to reply
}

RedisReplies::~RedisReplies() {
  redisReaderFree(reader_->reader);
  delete reader_;
}

bool RedisReplies::feed(std::string_view bytes) {
  return redisReaderFeed(reader_->reader, bytes.data(), bytes.size()) == REDIS_OK;
}

std::optional<RedisReply> RedisReplies::next(bool* ok) {
  void* reply = nullptr;
  *ok = redisReaderGetReply(reader_->reader, &reply) == REDIS_OK;
  if (!*ok || reply == nullptr) return std::nullopt;
  RedisReply result = converted(*static_cast<redisReply*>(reply));
  freeReplyObject(reply);
  return result;
}

std::string encode_redis_command(const std::vector<std::string>& words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) {
    bytes += "$" + std::to_string(word.size()) + "\r\n";
    bytes += word;
    bytes += "\r\n";
  }
  return bytes;
}

}  // namespace lintel
