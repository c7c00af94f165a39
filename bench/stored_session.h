// StoredSession: a session as the writer to a vault knows it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/storage/session_vault.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel::bench {

// Writes with the bodies that they point to.
class VaultWrites {
 public:
  void add(SessionVault::Write write, VaultBytes body);
  // Returns when they are durable. Throws std::runtime_error for one that is refused.
  void commit_to(SessionVault& vault) const;

 private:
  std::vector<SessionVault::Write> writes_;
  std::vector<VaultBytes> bodies_;
};

struct StoredSession {
  explicit StoredSession(std::string id, std::vector<std::int32_t> values = {});

  void create(VaultWrites& to);
  void begin(VaultWrites& to);
  void append(VaultWrites& to, std::span<const std::int32_t> values);
  void name_state(VaultWrites& to, const SessionVault::StateRef& state);
  void open(SessionVault& vault);  // and remembers the claim

  SessionVault::Row row;
  std::vector<std::int32_t> values;  // that it is created with
  SessionVault::Claim claim;

 private:
  SessionVault::Write write(SessionVault::Write::Kind kind, const Digest& after);
};

}  // namespace lintel::bench
