// SPDX-License-Identifier: Apache-2.0
// RedisStorage: a storage that several servers share: a Redis server, or a Redis Cluster.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/storage/redis/held_session.h"
#include "server/sessions/storage/redis/redis_client.h"
#include "server/sessions/storage/redis/redis_servers.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// The server that runs a call on a session claims it, with a random nonce and for the duration of a
// lease. Each write is a script that compares nonce, number and digest of the history with the
// stored ones, so that nothing is written twice, late, or over the writes of another server. Writes
// that a failover has lost are written again by the holder.
//
// docs/session_storage.md describes the protocol; scripts/common.lua the keys.
class RedisStorage final : public SessionStorage {
 public:
  struct Options {
    RedisOptions redis;  // the storage sets its scripts
    Duration lease = std::chrono::seconds(10);
    // The name of the holder of claims. A server that starts again under its name takes over at
    // once the sessions that it held before.
    std::string replica_id = "lintel";
    int swept_buckets = 64;  // checked by one sweep()
    // Nothing is removed if clocks differ by more.
    std::chrono::seconds clock_difference{60};
  };

  // Waits until the servers are known. Throws RedisError. `clock` outlives it.
  RedisStorage(Options options, const Clock& clock);
  // Leaves claims until their leases end or the next boot of this replica takes them.
  ~RedisStorage() override;

  bool is_shared() const override { return true; }
  Opened open(const SessionId& id, const Owner& owner, const Digest* have) override
      EXCLUDES(mutex_);
  Opened open_at(const SessionId& id, const Owner& owner, const Digest& at,
                 const std::string& call) override EXCLUDES(mutex_);
  Opened find(const SessionId& id, const Owner& owner) override;
  void commit(std::vector<Write> writes, Done done) override EXCLUDES(mutex_);
  SessionError read_tokens(const SessionId& id, std::int64_t first,
                           std::span<std::int32_t> tokens) override;
  SessionError put_state(const SessionId& id, std::span<const std::byte> state,
                         StateRef* ref) override EXCLUDES(mutex_);
  SessionError read_state(const StateRef& ref, std::span<std::byte> state) override;
  std::vector<Row> list_prefix(const std::string& prefix, const SessionId& after,
                               std::size_t limit) override;
  std::vector<Row> list(const std::string& model, const SessionId& after, std::size_t limit,
                        const std::optional<Owner>& owner) override;
  // Leases are renewed by a thread of its own.
  void renew(std::span<const SessionId> busy, Done done) override;
  std::size_t sweep(std::size_t most) override EXCLUDES(mutex_);
  Health health() const override EXCLUDES(mutex_);

 private:
  using SentPtr = HeldSession::SentPtr;
  using Report = std::function<void(SessionError)>;

  // Lists sessions of the buckets before `last`.
  std::vector<Row> list_buckets(const std::string& model, const SessionId& after, std::size_t limit,
                                const std::optional<Owner>& owner, int last);
  // Claims a session. at, call: as open_at(); null and empty: without these conditions. kHeld: with
  // the row.
  Opened ask_for(const SessionId& id, const Owner& owner, const Digest* at, const std::string& call)
      EXCLUDES(mutex_);
  // The first of `writes`, and the following ones that one script can carry.
  struct Taken {
    SentPtr sent{};                       // to be sent; null: nothing
    std::optional<SessionError> known{};  // neither: the claim is not here
    std::size_t count = 1;
  };
  Taken take(std::span<Write> writes) EXCLUDES(mutex_);
  // The session whose claim it was sent under; null: it is no longer here.
  HeldSession* held_of(const HeldSession::Sent& sent) REQUIRES(mutex_);
  // Forgets that claim; `waiting` receives writes whose callers still wait for an answer.
  void forget(const HeldSession::Sent& sent, std::vector<SentPtr>& waiting) REQUIRES(mutex_);
  void create(const Write& write, Report report);
  // Checks the outcome of a write whose claim is not here.
  void check(const Write& write, const Report& report);
  void send(const SentPtr& sent);
  void answered(const SentPtr& sent, const RedisAnswer& answer) EXCLUDES(mutex_);
  void stood(const SentPtr& sent, const RedisAnswer& answer) EXCLUDES(mutex_);
  void refused(const SentPtr& sent, SessionError outcome, bool may_stand) EXCLUDES(mutex_);
  // Heals a store that is not at the beginning of the write: writes the lost tokens first, if that
  // is allowed.
  void heal(const SentPtr& sent, const RedisReply& reply) EXCLUDES(mutex_);
  void healed(const SentPtr& sent, const RedisAnswer& answer,
              const std::array<std::byte, 16>& nonce) EXCLUDES(mutex_);
  void prolong(HeldSession& held, TimePoint asked_at) REQUIRES(mutex_);
  // Drops states that a session no longer names; then calls `then`.
  void drop_states(const SessionId& id, std::vector<std::uint64_t> doomed,
                   std::function<void()> then);
  // The error of an answer that no script gave.
  SessionError failure_of(const RedisAnswer& answer) EXCLUDES(mutex_);
  std::string lease_in_ms() const;
  void renew_until_closed() EXCLUDES(mutex_);
  void count_sessions() EXCLUDES(mutex_);

  const Options options_;
  const Clock& clock_;
  std::string boot_;

  Mutex sending_;  // before mutex_: writes prepared under it are sent in the same order
  mutable Mutex mutex_;
  CondVar closed_;
  bool is_closing_ GUARDED_BY(mutex_) = false;
  std::map<SessionId, HeldSession> held_ GUARDED_BY(mutex_);
  std::set<SessionId> opening_ GUARDED_BY(mutex_);
  // Nonces of claims without an answer, which may still be granted: a repeat is the same claim.
  std::map<SessionId, Claim> unanswered_ GUARDED_BY(mutex_);
  Health health_ GUARDED_BY(mutex_);
  bool is_full_ GUARDED_BY(mutex_) = false;
  std::vector<std::size_t> counts_ GUARDED_BY(mutex_);  // sessions by bucket, as last seen
  int next_swept_ GUARDED_BY(mutex_) = 0;
  RedisClient client_;   // its thread uses the members above, until it is stopped
  std::thread renewer_;  // so does this one
};

}  // namespace lintel
