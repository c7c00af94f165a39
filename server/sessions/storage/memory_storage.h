// SPDX-License-Identifier: Apache-2.0
// MemoryStorage: a storage in this process's memory, for tests and for sessions that end with it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

// Everything is done at once: `done` is called before commit() returns, on the calling thread.
class MemoryStorage : public SessionStorage {
 public:
  // `clock` outlives it, and determines what has expired.
  explicit MemoryStorage(const Clock& clock) : clock_(clock) {}
  ~MemoryStorage() override;

  Opened open(const SessionId& id, const Owner& owner, const Digest* have) override
      EXCLUDES(mutex_);
  Opened find(const SessionId& id, const Owner& owner) override EXCLUDES(mutex_);
  void commit(std::vector<Write> writes, Done done) override EXCLUDES(mutex_);
  SessionError read_tokens(const SessionId& id, std::int64_t first,
                           std::span<std::int32_t> tokens) override EXCLUDES(mutex_);
  SessionError put_state(const SessionId& id, std::span<const std::byte> state,
                         StateRef* ref) override EXCLUDES(mutex_);
  SessionError read_state(const StateRef& ref, std::span<std::byte> state) override
      EXCLUDES(mutex_);
  std::vector<Row> list(const std::string& model, const SessionId& after, std::size_t limit,
                        const std::optional<Owner>& owner) override EXCLUDES(mutex_);
  void renew(std::span<const SessionId> busy, Done done) override;
  std::size_t sweep(std::size_t most) override EXCLUDES(mutex_);
  Health health() const override EXCLUDES(mutex_);

  // Releases all claims, as after the end of the process that held sessions.
  void end_claims() EXCLUDES(mutex_);

 private:
  struct Held {
    Claim claim;
    std::vector<std::uint64_t> put;  // states that nothing names yet
  };

  SessionError write(const Write& write) REQUIRES(mutex_);
  SessionError create(const Write& write) REQUIRES(mutex_);
  void let_go(const SessionId& id) REQUIRES(mutex_);
  // Zeroes and frees states that no row names.
  void drop_states(const std::vector<StateRef>& before) REQUIRES(mutex_);
  void drop_state(std::uint64_t where) REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<SessionId, StorageSession> sessions_ GUARDED_BY(mutex_);
  std::map<SessionId, Held> held_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::vector<std::byte>> states_ GUARDED_BY(mutex_);
  std::uint64_t last_fence_ GUARDED_BY(mutex_) = 0;
  std::uint64_t last_state_ GUARDED_BY(mutex_) = 0;
  Health health_ GUARDED_BY(mutex_);
};

}  // namespace lintel
