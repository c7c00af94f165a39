// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_protocol.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

namespace lintel {
namespace {

// hiredis makes RedisReply objects, with as many elements as are allowed (a task's privdata).
// Nothing may be thrown through it: a null pointer ends the reading.

constexpr std::size_t kTooMany = SIZE_MAX;  // elements_allowed, once a list had more

// Lists within lists: hiredis 0.14 reads no deeper, later versions any depth, and the destructor of
// a reply goes as deep.
constexpr int kMostDepth = 7;

// The place for the reply of a task: in its parent's list, or on its own.
RedisReply* place_of(const redisReadTask* task) {
  if (task->parent == nullptr) return new (std::nothrow) RedisReply;
  return &static_cast<RedisReply*>(task->parent->obj)->list[static_cast<std::size_t>(task->idx)];
}

void free_reply(void* reply) { delete static_cast<RedisReply*>(reply); }

// True if the reply is of the protocol's version 2, the one in use: later versions of hiredis know
// types of version 3, which all have greater numbers.
bool is_expected(const redisReadTask* task) { return task->type <= REDIS_REPLY_ERROR; }

// Makes a reply with `fill`; frees it if that fails.
template <typename Fill>
void* made(const redisReadTask* task, const Fill& fill) noexcept {
  RedisReply* const reply = is_expected(task) ? place_of(task) : nullptr;
  if (reply == nullptr) return nullptr;
  try {
    fill(*reply);
    return reply;
  } catch (...) {
    if (task->parent == nullptr) delete reply;
    return nullptr;
  }
}

void* make_text(const redisReadTask* task, char* text, std::size_t size) {
  return made(task, [&](RedisReply& reply) {
    reply.kind =
        task->type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText;
    reply.text.assign(text, size);
  });
}

bool is_too_deep(const redisReadTask* task) {
  int depth = 0;
  for (; task != nullptr && depth <= kMostDepth; task = task->parent) ++depth;
  return depth > kMostDepth;
}

// `elements` is an int or a size_t, by the version of hiredis.
template <typename Count>
void* make_list(const redisReadTask* task, Count elements) {
  auto& allowed = *static_cast<std::size_t*>(task->privdata);
  const auto count = static_cast<std::size_t>(elements);
  if (!is_expected(task) || is_too_deep(task)) return nullptr;
  if (count > allowed) {
    allowed = kTooMany;
    return nullptr;
  }
  allowed -= count;
  return made(task, [&](RedisReply& reply) {
    reply.kind = RedisReply::Kind::kList;
    reply.list.resize(count);
  });
}

void* make_number(const redisReadTask* task, long long number) {
  return made(task, [&](RedisReply& reply) {
    reply.kind = RedisReply::Kind::kNumber;
    reply.number = number;
  });
}

void* make_nil(const redisReadTask* task) {
  return made(task, [](RedisReply&) {});
}

#if HIREDIS_MAJOR >= 1
// Types of version 3 that have functions of their own.
void* refuse_double(const redisReadTask*, double, char*, std::size_t) { return nullptr; }
void* refuse_bool(const redisReadTask*, int) { return nullptr; }

redisReplyObjectFunctions kMakers = {make_text, make_list,   make_number, refuse_double,
                                     make_nil,  refuse_bool, free_reply};
#else
redisReplyObjectFunctions kMakers = {make_text, make_list, make_number, make_nil, free_reply};
#endif

}  // namespace

struct RedisReplies::redisReaderHolder {
  redisReader* reader = redisReaderCreateWithFunctions(&kMakers);
  std::size_t elements_allowed = 0;

  std::size_t unread() const { return reader->len - reader->pos; }
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
  if (reader_->reader == nullptr) {
    delete reader_;
    throw std::bad_alloc();
  }
  reader_->reader->maxbuf = 0;  // the buffer is kept from reply to reply
  reader_->reader->privdata = &reader_->elements_allowed;
}

RedisReplies::~RedisReplies() {
  redisReaderFree(reader_->reader);
  delete reader_;
}

bool RedisReplies::feed(std::string_view bytes) {
  return redisReaderFeed(reader_->reader, bytes.data(), bytes.size()) == REDIS_OK;
}

bool RedisReplies::has_bytes() const { return bytes_ > 0 || reader_->unread() > 0; }

std::optional<RedisReply> RedisReplies::next(const RedisReplyBounds& bounds) {
  if (!error_.empty() || !has_bytes()) return std::nullopt;
  const std::size_t most = std::max(bounds.bytes, RedisReplyBounds::kLeastBytes);
  if (bytes_ == 0) reader_->elements_allowed = bounds.elements;
  const std::size_t before = reader_->unread();
  void* made = nullptr;
  const bool is_well = redisReaderGetReply(reader_->reader, &made) == REDIS_OK;
  const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(made));
  bytes_ += before - std::min(before, reader_->unread());
  if (!is_well) {
    error_ = reader_->elements_allowed == kTooMany
                 ? "its reply has more than " + std::to_string(bounds.elements) +
                       " elements, which nothing that was asked has"
                 : "it is no Redis server";
    return std::nullopt;
  }
  if (bytes_ + (reply == nullptr ? reader_->unread() : 0) > most) {
    error_ = "its reply is longer than " + std::to_string(most) +
             " bytes, which is more than was asked for";
    return std::nullopt;
  }
  if (reply == nullptr) return std::nullopt;
  bytes_ = 0;
  return std::move(*reply);
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

namespace {

RedisScript script_named(const char* name, bool when_full) {
  const std::string head = when_full ? "#!lua flags=allow-oom\n" : "#!lua\n";
  return RedisScript::of(head + redis_script_text("common") + redis_script_text(name));
}

}  // namespace

const RedisScripts& RedisScripts::get() {
  static const RedisScripts scripts{.claim = script_named("claim", true),
                                    .create = script_named("create", false),
                                    .write = script_named("write", false),
                                    .write_when_full = script_named("write", true),
                                    .check = script_named("check", true),
                                    .find = script_named("find", true),
                                    .read = script_named("read", true),
                                    .list = script_named("list", true),
                                    .sweep = script_named("sweep", true),
                                    .state = script_named("state", false),
                                    .drop_state = script_named("state", true),
                                    .document = script_named("document", false),
                                    .document_when_full = script_named("document", true)};
  return scripts;
}

std::vector<const RedisScript*> RedisScripts::all() const {
  return {&claim, &create,     &write,    &write_when_full,   &check, &find, &read, &list, &sweep,
          &state, &drop_state, &document, &document_when_full};
}

}  // namespace lintel
