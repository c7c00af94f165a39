// SPDX-License-Identifier: Apache-2.0
#include "server/app/stored_sessions.h"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/config/server_options.h"
#include "server/core/clock.h"
#include "server/sessions/persistence/call_records.h"
#include "server/sessions/storage/redis/redis_documents.h"
#include "server/sessions/storage/redis/redis_servers.h"
#include "server/sessions/storage/redis/redis_storage.h"
#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/sqlite/sqlite_documents.h"
#include "server/sessions/storage/sqlite/sqlite_storage.h"

namespace lintel {

// The storage that --session-store names.

// The user and password with which this server logs in to a store.
struct StoreCredentials {
  std::string user;  // empty: the default one
  std::string password;
};
// A line with the user and one with the password, or one with the password alone. Throws
// std::runtime_error, naming the file.
StoreCredentials read_store_credentials(const std::filesystem::path& file);

// Throws std::runtime_error: StorageError of a directory, RedisError of servers. REQUIRES:
// options.durable.store is not empty. `clock` outlives it.
std::unique_ptr<SessionStorage> open_storage(const ServerOptions& options, const Clock& clock);

namespace {

std::unique_ptr<SessionStorage> open_disk(const ServerOptions::DurableOptions& options,
                                          const Clock& clock) {
  SqliteStorage::Options storage;
  storage.directory = options.store;
  storage.commit_interval = options.commit_interval_ms;
  storage.slab_bytes = options.store_size_bytes;
  return std::make_unique<SqliteStorage>(storage, clock);
}

RedisOptions redis_options(const ServerOptions::SharedStoreOptions& shared, const RedisUrl& url) {
  RedisOptions redis;
  redis.url = url;
  if (!shared.credentials.empty()) {
    StoreCredentials read = read_store_credentials(shared.credentials);
    redis.user = std::move(read.user);
    redis.password = std::move(read.password);
  }
  redis.ca = shared.ca.string();
  redis.certificate = shared.cert.string();
  redis.key = shared.key.string();
  redis.wait_replicas = shared.wait_replicas;
  redis.wait = shared.wait_ms;
  return redis;
}

std::unique_ptr<SessionStorage> open_redis(const ServerOptions& options, const RedisUrl& url,
                                           const Clock& clock) {
  RedisStorage::Options storage;
  storage.redis = redis_options(options.shared, url);
  storage.lease = options.shared.lease_ms;
  storage.replica_id = options.replica_id;
  return std::make_unique<RedisStorage>(storage, clock);
}

}  // namespace

StoreCredentials read_store_credentials(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) {
    throw std::runtime_error("--session-store-credentials: " + file.string() +
                             ": cannot be read: " + std::strerror(errno));
  }
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
  }
  if (lines.empty() || lines.size() > 2) {
    throw std::runtime_error("--session-store-credentials: " + file.string() + ": has " +
                             std::to_string(lines.size()) +
                             " lines: a user and a password, or a password alone");
  }
  if (lines.size() == 1) return {.user = "", .password = lines[0]};
  return {.user = lines[0], .password = lines[1]};
}

std::unique_ptr<SessionStorage> open_storage(const ServerOptions& options, const Clock& clock) {
  const std::string store = options.durable.store.string();
  std::string why;
  if (!is_redis_url(store)) return open_disk(options.durable, clock);
  const std::optional<RedisUrl> url = parse_redis_url(store, &why);
  if (!url) throw std::runtime_error("--session-store: " + why);
  try {
    return open_redis(options, *url, clock);
  } catch (const RedisError& error) {
    throw RedisError("--session-store " + store + ": " + error.what());
  }
}

namespace {

// Opens the documents of the store that is open already.
std::unique_ptr<DocumentStorage> open_documents(const ServerOptions& options, const Clock& clock) {
  std::string why;
  const std::string store = options.durable.store.string();
  if (!is_redis_url(store)) {
    SqliteDocuments::Options documents;
    documents.owner_bytes = options.durable.identity_stored_bytes;
    return std::make_unique<SqliteDocuments>(options.durable.store, clock, documents);
  }
  return std::make_unique<RedisDocuments>(
      redis_options(options.shared, *parse_redis_url(store, &why)), clock);
}

using State = SessionStorage::Health::State;

// Most time that a shutdown takes to store idle states, from which sessions load faster.
constexpr Duration kStoreIdleStatesTime = std::chrono::seconds(2);

PersistentSessions::Options session_options(const ServerOptions& all) {
  const ServerOptions::DurableOptions& options = all.durable;
  PersistentSessions::Options sessions;
  sessions.durability = options.durability.value_or(Durability::kInput);
  sessions.commit_interval = options.commit_interval_ms;
  sessions.park.tokens = options.park_tokens;
  sessions.expire_after = options.expire;
  sessions.takes_other_numerics = options.takes_other_numerics;
  sessions.threads = options.store_threads;
  sessions.queue = options.load_queue;
  // A failover takes seconds, and until the lease has ended no other server has the session.
  if (is_redis_url(options.store.string())) sessions.patience = all.shared.lease_ms;
  return sessions;
}

// The time at which an unused session expires after `expire`; nothing: its creator set one.
std::optional<std::chrono::system_clock::time_point> expiry_of(const SessionStorage::Row& row,
                                                               std::chrono::seconds expire) {
  const std::optional<StoredMarks> marks = decode_marks(row.marks);
  if (!marks || marks->options.expire_after.count() > 0) return std::nullopt;
  return row.used + expire;
}

}  // namespace

StoredSessions::StoredSessions(const ServerOptions& options, SessionManager& store,
                               PrefixCache& prefixes, const ModelRegistry& models,
                               const Clock& clock)
    : place_(options.durable.store.string()),
      storage_(open_storage(options, clock)),
      documents_(open_documents(options, clock)),
      chat_states_(*storage_, durable_, prefixes, models, clock,
                   {.stores_all = options.durable.chat_spill,
                    .idle = options.durable.chat_spill_idle,
                    .expire_after = options.durable.chat_spill_expire}),
      durable_(*storage_, store, models, clock, session_options(options)) {
  if (auto* const disk = dynamic_cast<SqliteStorage*>(storage_.get())) {
    const std::size_t removed = disk->shorten_expiry(
        options.durable.expire.count(),
        [&](const SessionStorage::Row& row) { return expiry_of(row, options.durable.expire); });
    if (removed > 0) {
      spdlog::info("session store {}: {} sessions are over by a shorter --session-expire", place_,
                   removed);
    }
  }
  const SessionStorage::Health found = storage_->health();
  spdlog::info("session store {}: {} sessions, {} with an interrupted call, read in {:.1f} ms",
               place_, found.sessions, found.interrupted, 1e3 * recovery_time_.count());
  if (found.quarantined > 0) {
    spdlog::warn("session store {}: {} sessions are damaged, and set aside", place_,
                 found.quarantined);
  }
}

void StoredSessions::look() {
  if (DocumentStorage::Health responses = documents_->health(); responses != logged_responses_) {
    log_responses(responses);
    logged_responses_ = std::move(responses);
  }
  const SessionStorage::Health health = storage_->health();
  if (health.state != logged_state_) log_health(health);
  if (health.state == State::kBroken) return;
  sync_states();
  chat_states_.look();
  const std::size_t expired = durable_.sweep();
  if (health.clocks_differ && !std::exchange(logged_clocks_differ_, health.clocks_differ)) {
    spdlog::warn(
        "session store {}: its clock and this machine's differ by more than a minute: "
        "what has expired is not removed",
        place_);
  }
  logged_clocks_differ_ = health.clocks_differ;
  if (expired > 0) spdlog::info("{} stored sessions expired", expired);
}

void StoredSessions::sync_states() {
  if (auto* const disk = dynamic_cast<SqliteStorage*>(storage_.get())) disk->sync_states();
}

void StoredSessions::store_idle_states() {
  chat_states_.store_all(kStoreIdleStatesTime);
  const std::size_t stored = durable_.store_idle_states(kStoreIdleStatesTime);
  sync_states();
  if (stored > 0) spdlog::info("session store {}: {} states stored", place_, stored);
}

void StoredSessions::store_idle_states(const Transformer& model) {
  chat_states_.store_all(kStoreIdleStatesTime, &model);
  durable_.store_idle_states(kStoreIdleStatesTime, &model);
}

void StoredSessions::log_responses(const DocumentStorage::Health& health) const {
  using Responses = DocumentStorage::Health::State;
  switch (health.state) {
    case Responses::kOk:
      return spdlog::info("session store {}: takes responses again", place_);
    case Responses::kFull:
      return spdlog::warn("session store {}: responses that are to be stored are refused: {}",
                          place_, health.why);
    case Responses::kBroken:
      return spdlog::error("session store {}: stores no responses until a restart: {}", place_,
                           health.why);
  }
}

void StoredSessions::log_health(const SessionStorage::Health& health) {
  logged_state_ = health.state;
  switch (health.state) {
    case State::kOk:
      spdlog::info("session store {}: takes writes again", place_);
      break;
    case State::kFull:
    case State::kAway:
      spdlog::warn("session store {}: what is to be stored is refused: {}", place_, health.why);
      break;
    case State::kBroken:
      spdlog::error("session store {}: broken until a restart: {}", place_, health.why);
      if (when_broken_) when_broken_();
      break;
  }
}

}  // namespace lintel
