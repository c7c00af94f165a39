// SPDX-License-Identifier: Apache-2.0
// What the tests ask of storages, shortened.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel::testing {

using Kind = SessionStorage::Write::Kind;

// Writes that keep their bodies.
class Writes {
 public:
  Writes& add(SessionStorage::Write write, StorageBytes body);
  bool empty() const { return writes_.empty(); }
  // Waits until they are durable or refused.
  std::vector<SessionError> commit_to(SessionStorage& storage);
  void commit_to(SessionStorage& storage, SessionStorage::Done done) {
    storage.commit(writes_, done);
  }

 private:
  std::vector<SessionStorage::Write> writes_;
  std::vector<StorageBytes> bodies_;
};

// A session as a client of the storage knows it, to write it and to compare it with.
struct Client {
  SessionStorage::Row row;
  std::vector<std::int32_t> tokens;  // [row.base, row.position)
  SessionStorage::Claim claim;

  explicit Client(const std::string& id, const std::string& owner = "alice");
  // Writes; what they change here is what they change there.
  void create(Writes& to);
  void begin(Writes& to, const std::string& call);
  void append(Writes& to, std::span<const std::int32_t> more);
  void end(Writes& to, const RowChange& change = {});
  void rewind(Writes& to, std::int64_t position);
  void states(Writes& to, std::vector<SessionStorage::StateRef> states,
              std::int64_t base = 0);  // 0: as it was
  void release(Writes& to);
  void remove(Writes& to);

  SessionError open(SessionStorage& storage);  // and remembers the claim
  // The difference between this and the storage; empty: none. Unclaimed before and after.
  std::string difference(SessionStorage& storage) const;

 private:
  SessionStorage::Write write(Kind kind, const Digest& after);
};

// One write, and whether it was done.
template <typename Call>
SessionError commit_one(SessionStorage& storage, Call&& call) {
  Writes writes;
  call(writes);
  return writes.commit_to(storage).front();
}

// A state whose bytes identify it.
std::vector<std::byte> state_of(std::uint64_t seed, std::size_t bytes = 5000);

}  // namespace lintel::testing
