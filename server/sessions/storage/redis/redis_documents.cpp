// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_documents.h"

#include <algorithm>
#include <utility>

#include "server/core/random_bytes.h"
#include "server/sessions/storage/redis/redis_protocol.h"
#include "server/sessions/storage/redis/redis_servers.h"

namespace lintel {
namespace {

constexpr RedisReplyBounds kMostOfDocument{std::size_t{256} << 20, 16};
// A server's clock may be ahead of this one's.
constexpr std::chrono::minutes kTimeToSpare{10};
// The time for which a process is known after it was last alive.
constexpr std::chrono::milliseconds kRemembered = std::chrono::hours(24);
constexpr const char* kSecretKey = "lintel1:{documents}:secret";
// A hash by id with the runner, a line end and the owner of unfinished documents.
constexpr const char* kUnfinishedKey = "lintel1:{documents}:unfinished";
constexpr RedisReplyBounds kMostUnfinished{std::size_t{1} << 20, 8192};

std::int64_t micros_since_epoch(DocumentStorage::Time time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}
DocumentStorage::Time time_of_micros(std::int64_t micros) {
  return DocumentStorage::Time(std::chrono::microseconds(micros));
}

std::string random_bytes_text(std::size_t size) {
  std::string text(size, '\0');
  fill_with_random(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

RedisDocuments::RedisDocuments(RedisOptions options, const Clock& clock)
    : options_([&] {
        options.scripts = RedisScripts::get().all();
        return std::move(options);
      }()),
      clock_(clock) {}

RedisDocuments::~RedisDocuments() = default;

std::shared_ptr<RedisClient> RedisDocuments::client() {
  std::string process;
  std::shared_ptr<RedisClient> made;
  {
    const MutexLock lock(mutex_);
    if (client_ != nullptr) return client_;
    try {
      client_ = std::make_shared<RedisClient>(options_);
    } catch (const std::runtime_error&) {  // RedisError, or a file of TLS
      return nullptr;
    }
    made = client_;
    process = process_;
  }
  if (!process.empty()) note_alive(process);
  return made;
}

SessionError RedisDocuments::ask(const std::string& id, const std::string& owner, Time expires,
                                 std::vector<std::string> words, RedisReply& reply) {
  const std::shared_ptr<RedisClient> redis = client();
  if (redis == nullptr) return SessionError::kStoreAway;
  const RedisKeys keys(redis_bucket(id));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      expires - clock_.wall_time() + kTimeToSpare);
  const bool is_put = words.front() == "put";
  const bool only_reads = words.front() == "find" && words.back().empty();
  words.insert(words.begin() + 1, {owner, std::to_string(std::max<std::int64_t>(left.count(), 1))});
  const RedisScripts& scripts = RedisScripts::get();
  RedisAnswer answer =
      redis->ask_and_wait({.script = is_put ? &scripts.document : &scripts.document_when_full,
                           .keys = {keys.document(id)},
                           .words = std::move(words),
                           .slot = keys.slot,
                           .is_write = !only_reads,
                           .most = kMostOfDocument});
  if (!answer.arrived) return SessionError::kStoreAway;
  if (answer.reply.is_error("OOM")) return SessionError::kStoreFull;
  if (answer.reply.is_error("WRONGTYPE")) return SessionError::kDamaged;
  if (answer.reply.list.empty()) return SessionError::kStoreAway;
  reply = std::move(answer.reply);
  if (reply.at(0) == "NOT_FOUND") return SessionError::kNotFound;
  return reply.at(0) == "FENCED" ? SessionError::kFenced : SessionError::kNone;
}

SessionError RedisDocuments::put(Document& document) {
  const std::string expires = std::to_string(micros_since_epoch(document.expires));
  RedisReply reply;
  const bool adopts = document.version == 0 && !document.parent.empty();
  if (adopts) {
    const SessionError adopted = ask(document.parent, document.owner, document.expires,
                                     {"adopt", document.id, expires}, reply);
    if (adopted != SessionError::kNone) return adopted;
  }
  const SessionError error = ask(document.id, document.owner, document.expires,
                                 {"put", std::to_string(document.version), document.parent,
                                  document.body, expires, random_bytes_text(16)},
                                 reply);
  if (error == SessionError::kNone) {
    ++document.version;
    document.is_hidden = reply.at(1) == "1";
    if (!document.runner.empty()) return begin(document);
    // If this is lost, a later reader of the list settles the document.
    if (document.version > 1) settle(document.id);
  } else if (adopts && error == SessionError::kStoreFull) {
    release(document.parent, document.owner, document.id);
  }
  return error;
}

SessionError RedisDocuments::find(const std::string& id, const std::string& owner,
                                  std::optional<Time> keep_until, Document& found) {
  RedisReply reply;
  const std::string keep = keep_until ? std::to_string(micros_since_epoch(*keep_until)) : "";
  const SessionError error =
      ask(id, owner, keep_until.value_or(clock_.wall_time()),
          {"find", std::to_string(micros_since_epoch(clock_.wall_time())), keep}, reply);
  if (error != SessionError::kNone) return error;
  found = {.id = id,
           .owner = owner,
           .parent = reply.at(1),
           .body = reply.at(2),
           .version = reply.number_at(3),
           .is_hidden = reply.at(4) == "1",
           .expires = time_of_micros(reply.number_at(5))};
  return error;
}

SessionError RedisDocuments::remove(const std::string& id, const std::string& owner) {
  RedisReply reply;
  const SessionError error =
      ask(id, owner, clock_.wall_time(),
          {"remove", std::to_string(micros_since_epoch(clock_.wall_time()))}, reply);
  if (error == SessionError::kNone && reply.at(0) == "GONE") release(reply.at(1), owner, id);
  return error;
}

void RedisDocuments::release(std::string id, const std::string& owner, std::string child) {
  while (!id.empty()) {
    RedisReply reply;
    const SessionError error = ask(id, owner, clock_.wall_time(), {"release", child}, reply);
    if (error != SessionError::kNone || reply.at(0) != "GONE") return;
    child = std::exchange(id, reply.at(1));
  }
}

std::size_t RedisDocuments::sweep(std::size_t) { return 0; }

SessionError RedisDocuments::begin(const Document& document) {
  const std::shared_ptr<RedisClient> redis = client();
  if (redis == nullptr) return SessionError::kStoreAway;
  const RedisAnswer set = redis->ask_and_wait(
      {.words = {"HSET", kUnfinishedKey, document.id, document.runner + "\n" + document.owner},
       .slot = redis_slot(kUnfinishedKey),
       .is_write = true});
  if (set.arrived && !set.reply.is_error()) return SessionError::kNone;
  return set.arrived && set.reply.is_error("OOM") ? SessionError::kStoreFull
                                                  : SessionError::kStoreAway;
}

void RedisDocuments::settle(const std::string& id) {
  const std::shared_ptr<RedisClient> redis = client();
  if (redis == nullptr) return;
  redis->ask_and_wait({.words = {"HDEL", kUnfinishedKey, id},
                       .slot = redis_slot(kUnfinishedKey),
                       .is_write = true});
}

std::vector<DocumentStorage::Unfinished> RedisDocuments::unfinished(std::size_t most) {
  std::vector<Unfinished> found;
  const std::shared_ptr<RedisClient> redis = client();
  if (redis == nullptr) return found;
  std::string from;
  {
    const MutexLock lock(mutex_);
    from = listed_until_;
  }
  const RedisAnswer answer =
      redis->ask_and_wait({.words = {"HSCAN", kUnfinishedKey, from, "COUNT", std::to_string(most)},
                           .slot = redis_slot(kUnfinishedKey),
                           .most = kMostUnfinished});
  const bool is_list = answer.arrived && answer.reply.list.size() == 2;
  if (is_list) {
    const std::vector<RedisReply>& each = answer.reply.list[1].list;
    for (std::size_t i = 0; i + 1 < each.size(); i += 2) {
      const std::string& text = each[i + 1].text;
      const std::size_t end = std::min(text.find('\n'), text.size() - 1);
      if (text.empty()) continue;
      found.push_back({each[i].text, text.substr(end + 1), text.substr(0, end)});
    }
  }
  const MutexLock lock(mutex_);
  listed_until_ = is_list ? answer.reply.at(0) : "0";
  return found;
}

SessionError RedisDocuments::secret(Secret& secret) {
  const std::shared_ptr<RedisClient> redis = client();
  if (redis == nullptr) return SessionError::kStoreAway;
  const int slot = redis_slot(kSecretKey);
  const RedisAnswer set =
      redis->ask_and_wait({.words = {"SET", kSecretKey, random_bytes_text(secret.size()), "NX"},
                           .slot = slot,
                           .is_write = true});
  const RedisAnswer got = redis->ask_and_wait({.words = {"GET", kSecretKey}, .slot = slot});
  if (!got.arrived || got.reply.text.size() != secret.size()) {
    return set.arrived && set.reply.is_error("OOM") ? SessionError::kStoreFull
                                                    : SessionError::kStoreAway;
  }
  std::ranges::copy(std::as_bytes(std::span(got.reply.text)), secret.begin());
  return SessionError::kNone;
}

std::string RedisDocuments::alive_key(const std::string& process) const {
  return "lintel1:{" + process + "}:alive";
}

void RedisDocuments::note_alive(const std::string& process) {
  std::shared_ptr<RedisClient> redis;
  {
    const MutexLock lock(mutex_);
    process_ = process;
    redis = client_;
  }
  if (redis == nullptr) return;  // nothing of it is stored
  const std::string key = alive_key(process);
  redis->ask({.words = {"SET", key, "", "PX", std::to_string(kRemembered.count())},
              .slot = redis_slot(key)});
}

std::optional<DocumentStorage::Time> RedisDocuments::last_seen(const std::string& process) {
  const std::shared_ptr<RedisClient> redis = client();
  if (redis == nullptr) return std::nullopt;
  const std::string key = alive_key(process);
  // The rest of its time is measured by the server's clock: those of processes may differ.
  const RedisAnswer answer = redis->ask_and_wait({.words = {"PTTL", key}, .slot = redis_slot(key)});
  if (!answer.arrived || answer.reply.number < 0) return std::nullopt;
  const std::chrono::milliseconds left(answer.reply.number);
  return clock_.wall_time() - std::max(kRemembered - left, std::chrono::milliseconds(0));
}

}  // namespace lintel
