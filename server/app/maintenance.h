// SPDX-License-Identifier: Apache-2.0
// Maintenance: the server's periodic duties.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "server/app/stored_sessions.h"
#include "server/core/clock.h"
#include "server/core/notification.h"
#include "server/core/request_memory.h"
#include "server/models/model_manager.h"
#include "server/openai/response_store.h"
#include "server/rpc/call_scope.h"
#include "server/security/bearer_tokens.h"
#include "server/security/certificates.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// Rereads certificates and tokens that changed, evicts idle sessions, unloads idle models, has the
// session store do what is due there, and gives memory that calls left free back to the system
// while none comes. Time is the clock's; only the thread sleeps in real time. Threads: start and
// stop by one thread, look by the maintenance thread or, without one, by the owner of the object.
class Maintenance {
 public:
  struct State {
    Certificates* certificates = nullptr;  // null: plain text
    BearerTokens* tokens = nullptr;        // null: none is asked for
    SessionManager& store;
    const ActiveCalls& calls;
    const RequestCounters& counters;
    StoredSessions* stored = nullptr;  // null: no session outlives the server
    ResponseStore* responses = nullptr;
    ModelManager* models = nullptr;  // null: none is unloaded
  };

  // REQUIRES: the objects that `state` refers to, and the clock, outlive this one.
  Maintenance(const State& state, const Clock& clock,
              std::function<void()> give_back_free_memory = trim_heap);
  ~Maintenance();  // stop()

  void start();  // looks every kInterval from now on
  void stop();   // idempotent
  // Does what is due.
  void look();

  static constexpr std::chrono::milliseconds kInterval{250};
  // Free memory is released kIdleTime after the last call, then every kLongIdleTime without one.
  static constexpr std::chrono::seconds kIdleTime{1};
  static constexpr std::chrono::seconds kLongIdleTime{10};
  static constexpr std::chrono::seconds kStoreInterval{1};

 private:
  void reload_files();
  void give_back_memory(TimePoint now);
  void evict_sessions(TimePoint now);
  void look_after_store(TimePoint now);
  void look_after_responses(TimePoint now);

  const State state_;
  const Clock& clock_;
  const std::function<void()> give_back_free_memory_;
  const Duration eviction_interval_;  // 0: sessions are not evicted
  TimePoint next_eviction_;
  std::uint64_t calls_before_ = 0;
  TimePoint next_give_back_;
  TimePoint next_of_store_, next_of_responses_;

  Notification stopping_bell_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace lintel
