#include "server/stored/stored_sessions.h"

#include <spdlog/spdlog.h>

namespace lintel {
namespace {

using State = SessionVault::Health::State;

// What an end may take for sessions to wake faster.
constexpr Duration kParkTime = std::chrono::seconds(2);

SqliteVault::Options vault_options(const ServerOptions::DurableOptions& options) {
  SqliteVault::Options vault;
  vault.directory = options.store;
  vault.commit_interval = options.commit_interval_ms;
  vault.slab_bytes = options.store_size_bytes;
  return vault;
}

DurableSessions::Options session_options(const ServerOptions::DurableOptions& options) {
  DurableSessions::Options sessions;
  sessions.durability = options.durability.value_or(Durability::kInput);
  sessions.commit_interval = options.commit_interval_ms;
  sessions.park_tokens = options.park_tokens;
  sessions.expire_after = options.expire;
  sessions.takes_other_numerics = options.takes_other_numerics;
  sessions.threads = options.store_threads;
  sessions.queue = options.load_queue;
  return sessions;
}

}  // namespace

StoredSessions::StoredSessions(const ServerOptions::DurableOptions& options, SessionStore& store,
                               const ModelRegistry& models, const Clock& clock)
    : directory_(options.store.string()),
      vault_(vault_options(options), clock),
      durable_(vault_, store, models, clock, session_options(options)) {
  const SessionVault::Health found = vault_.health();
  spdlog::info("session store {}: {} sessions, {} with an interrupted call, read in {:.1f} ms",
               directory_, found.sessions, found.interrupted, 1e3 * recovery_time_.count());
  if (found.quarantined > 0) {
    spdlog::warn("session store {}: {} sessions are damaged, and set aside", directory_,
                 found.quarantined);
  }
}

void StoredSessions::look() {
  const SessionVault::Health health = vault_.health();
  if (health.state != told_) tell(health);
  if (health.state == State::kBroken) return;
  vault_.sync_states();
  const std::size_t expired = durable_.sweep();
  if (expired > 0) spdlog::info("{} stored sessions expired", expired);
}

void StoredSessions::park() {
  const std::size_t parked = durable_.park_idle(kParkTime);
  vault_.sync_states();
  if (parked > 0) spdlog::info("session store {}: {} states stored", directory_, parked);
}

void StoredSessions::tell(const SessionVault::Health& health) {
  told_ = health.state;
  switch (health.state) {
    case State::kOk:
      spdlog::info("session store {}: takes writes again", directory_);
      break;
    case State::kFull:
    case State::kAway:
      spdlog::warn("session store {}: what is to be stored is refused: {}", directory_, health.why);
      break;
    case State::kBroken:
      spdlog::error("session store {}: broken until a restart: {}", directory_, health.why);
      broken_ = true;
      if (when_broken_) when_broken_();
      break;
  }
}

}  // namespace lintel
