#include "server/app/open_vault.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "server/sessions/storage/redis/redis_url.h"
#include "server/sessions/storage/redis/redis_vault.h"
#include "server/sessions/storage/sqlite/sqlite_vault.h"

namespace lintel {
namespace {

std::unique_ptr<SessionVault> open_disk(const ServerOptions::DurableOptions& options,
                                        const Clock& clock) {
  SqliteVault::Options vault;
  vault.directory = options.store;
  vault.commit_interval = options.commit_interval_ms;
  vault.slab_bytes = options.store_size_bytes;
  return std::make_unique<SqliteVault>(vault, clock);
}

std::unique_ptr<SessionVault> open_redis(const ServerOptions& options, const RedisUrl& url,
                                         const Clock& clock) {
  const ServerOptions::SharedStoreOptions& shared = options.shared;
  RedisVault::Options vault;
  vault.redis.url = url;
  if (!shared.credentials.empty()) {
    StoreCredentials read = read_store_credentials(shared.credentials);
    vault.redis.user = std::move(read.user);
    vault.redis.password = std::move(read.password);
  }
  vault.redis.ca = shared.ca.string();
  vault.redis.certificate = shared.cert.string();
  vault.redis.key = shared.key.string();
  vault.redis.wait_replicas = shared.wait_replicas;
  vault.redis.wait = shared.wait_ms;
  vault.lease = shared.lease_ms;
  vault.replica_id = options.replica_id;
  return std::make_unique<RedisVault>(vault, clock);
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

std::unique_ptr<SessionVault> open_vault(const ServerOptions& options, const Clock& clock) {
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

}  // namespace lintel
