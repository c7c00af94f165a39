// What the tests ask of vaults, shortened.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/storage/session_vault.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel::testing {

using Kind = SessionVault::Write::Kind;

// Writes that keep their bodies.
class Writes {
 public:
  Writes& add(SessionVault::Write write, VaultBytes body);
  bool empty() const { return writes_.empty(); }
  // Waits until they are durable or refused.
  std::vector<VaultOutcome> commit_to(SessionVault& vault);
  void commit_to(SessionVault& vault, SessionVault::Done done) { vault.commit(writes_, done); }

 private:
  std::vector<SessionVault::Write> writes_;
  std::vector<VaultBytes> bodies_;
};

// A session as a client of the vault knows it, to write it and to compare it with.
struct Client {
  SessionVault::Row row;
  std::vector<std::int32_t> values;  // [row.base, row.position)
  SessionVault::Claim claim;

  explicit Client(const std::string& id, const std::string& owner = "alice");
  // Writes; what they change here is what they change there.
  void create(Writes& to);
  void begin(Writes& to, const std::string& call);
  void append(Writes& to, std::span<const std::int32_t> more);
  void end(Writes& to, const RowChange& change = {});
  void rewind(Writes& to, std::int64_t position);
  void states(Writes& to, std::vector<SessionVault::StateRef> states,
              std::int64_t base = 0);  // 0: as it was
  void release(Writes& to);
  void remove(Writes& to);

  VaultOutcome open(SessionVault& vault);  // and remembers the claim
  // What differs between this and the vault; empty: nothing. Unclaimed before and after.
  std::string difference(SessionVault& vault) const;

 private:
  SessionVault::Write write(Kind kind, const Digest& after);
};

// One write, and whether it was done.
template <typename Call>
VaultOutcome commit_one(SessionVault& vault, Call&& call) {
  Writes writes;
  call(writes);
  return writes.commit_to(vault).front();
}

// A state whose bytes identify it.
std::vector<std::byte> state_of(std::uint64_t seed, std::size_t bytes = 5000);

}  // namespace lintel::testing
