// SPDX-License-Identifier: Apache-2.0
// StoredSessions: the session store of a server, from before its port is bound until its last call
// is over.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "server/config/server_options.h"
#include "server/core/clock.h"
#include "server/models/model_registry.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/persistence/stored_chat_states.h"
#include "server/sessions/session_manager.h"
#include "server/sessions/storage/document_storage.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// The storage in --session-store, and what goes between it and the sessions in memory. Thread-safe,
// but that look() is one thread's.
class StoredSessions {
 public:
  // Takes the directory for this process, or finds the servers, and logs what is there. Throws
  // std::runtime_error. REQUIRES: options.durable.store is not empty; all else outlives it.
  StoredSessions(const ServerOptions& options, SessionManager& store, PrefixCache& prefixes,
                 const ModelRegistry& models, const Clock& clock);
  // Returns once everything accepted is on the disk. REQUIRES: no call runs.
  ~StoredSessions() = default;

  PersistentSessions& sessions() { return durable_; }
  const PersistentSessions& sessions() const { return durable_; }
  StoredChatStates& chat_states() { return chat_states_; }
  DocumentStorage& documents() { return *documents_; }

  // Writes states to the disk, removes expired sessions, and reports the store's health where it
  // has changed. Waits for the disk.
  void look();
  // Puts states of sessions in memory into the store before the end, when no call runs any more,
  // for a few seconds at most. Waits for the disk.
  void store_idle_states();
  // The same for a model that is to be unloaded: states of its sessions and chats.
  void store_idle_states(const Transformer& model);
  // Sets a function that look() calls when the store breaks. REQUIRES: look() is not running.
  void when_broken(std::function<void()> call) { when_broken_ = std::move(call); }

  // The time that opening the storage took.
  std::chrono::duration<double> recovery_time() const { return recovery_time_; }

 private:
  void log_health(const SessionStorage::Health& health);
  void log_responses(const DocumentStorage::Health& health) const;
  void sync_states();

  const std::string place_;  // the directory, or the servers
  const TimePoint began_ = std::chrono::steady_clock::now();
  const std::unique_ptr<SessionStorage> storage_;
  const std::unique_ptr<DocumentStorage> documents_;  // in the same place
  const std::chrono::duration<double> recovery_time_ = std::chrono::steady_clock::now() - began_;
  StoredChatStates chat_states_;  // before the threads of durable_, which use it
  PersistentSessions durable_;
  SessionStorage::Health::State logged_state_ = SessionStorage::Health::State::kOk;
  DocumentStorage::Health logged_responses_;
  bool logged_clocks_differ_ = false;
  std::function<void()> when_broken_;
};

}  // namespace lintel
